"""DeepSpeed: `[Rank 0] step=10, skipped=0, lr=..`, its throughput timer, its pipeline.

engine.py prints the step; utils/timer.py `epoch=0/micro_step=40/global_step=10,
RunningAvgSamplesPerSec=.., CurrSamplesPerSec=.., MemAllocated=..GB, MaxMemAllocated=..GB` (before
2022 `0/40, SamplesPerSec=..`, which counts micro-steps); pipe/engine.py `steps: 10 loss: 7.1 iter
time (s): 1.234 samples/sec: 25.9`. Releases differ in whose samples the timer counts, so times of
day take precedence over it. `wall_clock_breakdown`: `time (ms) | fwd: .. | bwd: .. | step: ..`.
"""

from __future__ import annotations

import re

from shardwright_frameworks.logs.formats.log_record import Fact, LogRecord, PartTimes, StepLine
from shardwright_frameworks.logs.formats.logged_number import NUMBER, above_zero, number
from shardwright_frameworks.logs.formats.piped_fields import piped_fields

_STEP = re.compile(r"\bstep=(\d+), skipped=\d+")
_TIMER = re.compile(r"global_step=(\d+), RunningAvgSamplesPerSec")
_NOW = re.compile(rf"CurrSamplesPerSec=({NUMBER})")
_PEAK = re.compile(rf"MaxMemAllocated=({NUMBER})\s*GB")
_PIPE = re.compile(
    rf"steps:\s*(\d+)\s+loss:\s*({NUMBER})\s+iter time \(s\):\s*({NUMBER})"
    rf"(?:\s+samples/sec:\s*({NUMBER}))?"
)
_CONFIG = re.compile(r"\btrain_batch_size \.{3,} (\d+)")
# Of a step as a whole (`fwd_microstep` is one micro-batch); newest and oldest names.
_PARTS: tuple[str, ...] = (
    "fwd",
    "bwd",
    "bwd_inner",
    "bwd_allreduce",
    "step",
    "forward",
    "backward",
)
_PARTS += ("backward_inner", "backward_allreduce")


class DeepSpeedReader:
    """Reads lines of DeepSpeed."""

    name = "deepspeed"

    def read(self, line: str) -> LogRecord | None:
        """A step, parts of one, or the batch of the printed configuration."""
        if "skipped=" in line and (found := _STEP.search(line)) is not None:
            return StepLine(step=int(found[1]))
        if "SamplesPerSec=" in line:
            return _timer(line)
        if "iter time (s)" in line and (pipe := _PIPE.search(line)) is not None:
            return StepLine(
                step=int(pipe[1]),
                time_s=above_zero(pipe[3]),
                loss=number(pipe[2]),
                samples_per_s=above_zero(pipe[4]),
            )
        if "time (ms) |" in line:
            fields = piped_fields(line[line.index("time (ms) |") :])
            parts = {name.replace(" ", "_"): above_zero(text) for name, text in fields.items()}
            kept = {name: ms / 1e3 for name, ms in parts.items() if ms and name in _PARTS}
            return PartTimes(seconds=kept) if kept else None
        if "train_batch_size ..." in line and (config := _CONFIG.search(line)) is not None:
            return Fact(values={"global_batch": float(config[1])})
        return None


def _timer(line: str) -> LogRecord | None:
    peak, now, step = _PEAK.search(line), _NOW.search(line), _TIMER.search(line)
    memory = above_zero(peak[1]) if peak else None
    if step is not None:
        return StepLine(
            step=int(step[1]),
            samples_per_s=above_zero(now[1]) if now else None,
            memory_gib=memory,
            memory_kind="allocated" if memory else "",
        )
    if memory is not None:
        return Fact(values={"memory_gib": memory}, memory_kind="allocated")
    return None
