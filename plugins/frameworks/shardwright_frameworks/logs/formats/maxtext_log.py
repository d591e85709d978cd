"""MaxText: `completed step: 9, seconds: 5.667, TFLOP/s/device: 134.9, Tokens/s/device: 8672, ...`.

Steps count from 0 and the first compiles (metric_logger.py). Memory: `Using (GB) 1.2 / 31.25 (3.8%)
on TPU_0(...)`, in 1e9 bytes (max_utils.py, `print_mem_stats`).
"""

from __future__ import annotations

import re

from shardwright_frameworks.logs.formats.log_record import Fact, LogRecord, StepLine
from shardwright_frameworks.logs.formats.logged_number import NUMBER, above_zero, number

_STEP = re.compile(rf"completed step:\s*(\d+),\s*seconds:\s*({NUMBER})")
_FIELD = re.compile(rf"(TFLOP/s(?:/device)?|Tokens/s/device|loss):\s*({NUMBER})")
_MEMORY = re.compile(r"Using \(GB\)\s*([\d.,]+)\s*/\s*[\d.,]+")
_GB_IN_GIB = 1e9 / 2**30


class MaxTextReader:
    """Reads lines of MaxText."""

    name = "maxtext"

    def read(self, line: str) -> LogRecord | None:
        """A step, or the memory of a device."""
        if "completed step:" in line and (found := _STEP.search(line)) is not None:
            fields = {name: value.rstrip(",") for name, value in _FIELD.findall(line)}
            loss = fields.get("loss")
            flops = fields.get("TFLOP/s/device") or fields.get("TFLOP/s")
            return StepLine(
                step=int(found[1]) + 1,
                time_s=above_zero(found[2]),
                loss=None if loss is None else number(loss),
                device_tokens_per_s=above_zero(fields.get("Tokens/s/device")),
                tflop_per_s=above_zero(flops),
            )
        if "Using (GB)" in line and (memory := _MEMORY.search(line)) is not None:
            used = above_zero(memory[1])
            if used is not None:
                return Fact(values={"memory_gib": used * _GB_IN_GIB}, memory_kind="device")
        return None
