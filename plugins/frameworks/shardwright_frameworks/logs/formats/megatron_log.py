"""Logs of Megatron-LM, Megatron-DeepSpeed, Megatron-Bridge, GPT-NeoX, MindSpeed and Primus.

`iteration N/ M | ... | elapsed time per iteration (ms): T | ...`, the mean of the steps since the
last line (training.py, `training_log`); BigScience's fork prints seconds, Argonne's `=` for `:`,
Primus the running mean after each figure. Memory: `[Rank 0] (after N iterations) memory (MB) |
allocated: ... | max allocated: ...`, in 2^20 bytes (utils.py, `report_memory`).
"""

from __future__ import annotations

import re

from shardwright_frameworks.logs.formats.log_record import Fact, LogRecord, PartTimes, StepLine
from shardwright_frameworks.logs.formats.logged_number import NUMBER, above_zero, number
from shardwright_frameworks.logs.formats.piped_fields import ITERATION, first, piped_fields

_LEADING = re.compile(NUMBER)
_ARGUMENT = re.compile(r"^\s*(world_size|seq_length|global_batch_size)\s*\.{3,}\s*(\d+)\s*$")
_ARGUMENTS = {"world_size": "devices", "seq_length": "seq_len", "global_batch_size": "global_batch"}
_OLD_LOSS = re.compile(rf"\blm loss\s+({NUMBER})")  # until 2020 without a colon
_WORLD = re.compile(r"using world size:\s*(\d+)")
_PART = re.compile(r"^\s*([a-z][\w-]*(?:-[\w-]+)*) \.{2,}: \(([\d.,]+), ([\d.,]+)\)")


class MegatronReader:
    """Reads lines of Megatron-LM."""

    name = "megatron-lm"

    def read(self, line: str) -> LogRecord | None:
        """A step, peaks of memory, parts of a step, or the arguments printed at the start."""
        if "iteration" in line and "|" in line:
            found = ITERATION.search(line)
            if found is not None and "consumed_tokens:" not in line:
                return _step(line, int(found[1]), int(found[2]))
        if "memory (MB)" in line:
            return _memory(line)
        if " ...." in line and (argument := _ARGUMENT.match(line)) is not None:
            return Fact(values={_ARGUMENTS[argument[1]]: float(argument[2])})
        if "using world size" in line and (world := _WORLD.search(line)) is not None:
            return Fact(values={"devices": float(world[1])})
        if "..: (" in line and (part := _PART.match(line)) is not None:
            slowest = above_zero(part[3])
            return None if slowest is None else PartTimes(seconds={part[1]: slowest / 1e3})
        return None


def _step(line: str, step: int, total: int) -> StepLine | None:
    fields = piped_fields(line)
    in_ms = first(fields, "elapsed time per iteration (ms)", "elapsed time per iteration ms")
    in_s = first(fields, "elapsed time per iteration (s)")
    time_s = above_zero(_bare(in_ms))
    time_s = above_zero(_bare(in_s)) if time_s is None else time_s / 1e3
    loss = first(fields, "lm loss", "loss", "total loss", "reduced train loss")
    if loss is None and (old := _OLD_LOSS.search(line)) is not None:
        loss = old[1]
    flops = first(
        fields,
        "throughput per gpu (tflop/s/gpu)",
        "tflops",
        "approx flops per gpu",
        "tflops per gpu",
    )
    return StepLine(
        step=step,
        total=total or None,
        time_s=time_s,
        loss=None if loss is None else number(loss),
        tokens_per_s=above_zero(_bare(first(fields, "tokens per second", "tokens/s"))),
        device_tokens_per_s=above_zero(
            _bare(
                first(
                    fields,
                    "tokens per gpu per second (tgs)",
                    "tokens per gpu per second tgs",
                    "tokens per gpu per second(tgs)",
                    "tokens per gpu (tokens/s/gpu)",
                    "tokens/s/gpu",
                )
            )
        ),
        samples_per_s=above_zero(
            _bare(first(fields, "samples per second", "samples/sec", "samples per second (sps)"))
        ),
        global_batch=above_zero(_bare(first(fields, "global batch size"))),
        tflop_per_s=above_zero(_bare(flops)),
    )


def _bare(text: str | None) -> str | None:
    """The number at the beginning of a value: `112.9TFLOPS`."""
    found = _LEADING.match(text) if text else None
    return None if found is None else found[0]


def _memory(line: str) -> Fact | None:
    fields = piped_fields(line[line.index("memory (MB)") :])
    for kind, name in (("allocated", "max allocated"), ("reserved", "max reserved")):
        found = above_zero(_bare(first(fields, name)))
        if found is not None:
            return Fact(values={"memory_gib": found / 1024}, memory_kind=kind)
    return None
