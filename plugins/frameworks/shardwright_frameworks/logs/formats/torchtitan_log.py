"""torchtitan: `step: 10  loss:  7.1  grad_norm: ..  memory: 40.1GiB(50.6%)  tps: 3,210  ..`.

`tps` is tokens per second and device since the last line, with commas between thousands (`wps`
until autumn 2024); memory is the reserved peak (components/metrics.py). Step times are not printed,
but follow from the times of day, to the millisecond.
"""

from __future__ import annotations

import re

from shardwright_frameworks.logs.formats.log_record import Fact, LogRecord, StepLine
from shardwright_frameworks.logs.formats.logged_number import NUMBER, above_zero, number

_STEP = re.compile(r"\bstep:\s*(\d+)\s+(?:(?:lr|loss|grad_norm|global_\w+):|loss:)")
_LOSS = re.compile(rf"\bloss:\s*({NUMBER})")
_MEMORY = re.compile(r"\bmemory:\s*([\d.,]+)GiB")
_TOKENS = re.compile(r"\b(?:tps|wps):\s*([\d,.]+)")
_FLOPS = re.compile(r"\btflops:\s*([\d,.]+)")
_TIME = re.compile(r"\b(?:end_to_end|time_metrics/end_to_end)\(s\):\s*([\d.,]+)")
_START = re.compile(r"Training starts at step")
_FACTS = (
    ("seq_len", re.compile(r"sequence length:?\s*(\d+)")),
    ("global_batch", re.compile(r"global batch size:?\s*(\d+)")),
)
_MESH = re.compile(r"Building \d+-D device mesh with \[.*?\],\s*\[([\d,\s]+)\]")


class TorchtitanReader:
    """Reads lines of torchtitan."""

    name = "torchtitan"

    def read(self, line: str) -> LogRecord | None:
        """A step, or the batch, sequence length and mesh printed at the start."""
        if "step:" in line and "loss:" in line and "validate step:" not in line:
            found = _STEP.search(line)
            if found is not None:
                return _step(line, int(found[1]))
        if "device mesh" in line and (mesh := _MESH.search(line)) is not None:
            devices = 1.0
            for degree in re.findall(r"\d+", mesh[1]):
                devices *= int(degree)
            return Fact(values={"devices": devices})
        if "sequence length" in line and _START.search(line) is not None:
            written = {name: pattern.search(line) for name, pattern in _FACTS}
            return Fact(values={name: float(found[1]) for name, found in written.items() if found})
        return None


def _step(line: str, step: int) -> StepLine | None:
    memory, tokens = _MEMORY.search(line), _TOKENS.search(line)
    if memory is None and tokens is None:
        return None
    loss, flops, time = _LOSS.search(line), _FLOPS.search(line), _TIME.search(line)
    return StepLine(
        step=step,
        time_s=above_zero(time[1]) if time else None,
        loss=number(loss[1]) if loss else None,
        device_tokens_per_s=above_zero(tokens[1], grouped=True) if tokens else None,
        tflop_per_s=above_zero(flops[1], grouped=True) if flops else None,
        memory_gib=above_zero(memory[1]) if memory else None,
        memory_kind="reserved" if memory else "",
    )
