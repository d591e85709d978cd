"""nanotron: `iteration: N / M | consumed_tokens: 1.2M | elapsed_time_per_iteration_ms: 11K | ..`.

Figures have three digits and a suffix K, M or G (logging.py, `human_format`); the time is the mean
over `iteration_step_info_interval` steps (trainer.py, `train_step_logs`).
"""

from __future__ import annotations

import re

from shardwright_frameworks.logs.formats.log_record import Fact, LogRecord, StepLine
from shardwright_frameworks.logs.formats.logged_number import above_zero, number
from shardwright_frameworks.logs.formats.piped_fields import first, piped_fields

_ITERATION = re.compile(r"\biteration:\s*(\d+)\s*/\s*(\d+)\s*\|\s*consumed_tokens")
_MEMORY = re.compile(r"Peak allocated ([\d.,]+)\s*Mi?B")
_GIB = 2**30


class NanotronReader:
    """Reads lines of nanotron."""

    name = "nanotron"

    def read(self, line: str) -> LogRecord | None:
        """A step, or the peak of memory, which is printed after the first step."""
        if "consumed_tokens" in line and (found := _ITERATION.search(line)) is not None:
            return _step(line[found.start() :], int(found[1]), int(found[2]))
        if "Peak allocated" in line and (memory := _MEMORY.search(line)) is not None:
            peak = above_zero(memory[1])
            values = {} if peak is None else {"memory_gib": peak / 1024}
            return Fact(values=values, memory_kind="allocated") if values else None
        return None


def _step(line: str, step: int, total: int) -> StepLine:
    fields = piped_fields(line)
    time_ms = above_zero(first(fields, "elapsed time per iteration ms", "time per iteration ms"))
    loss = first(fields, "lm loss", "loss")
    peak = above_zero(first(fields, "cuda max memory reserved", "cuda max memory allocated"))
    reserved = "cuda max memory reserved" in fields
    return StepLine(
        step=step,
        total=total,
        time_s=None if time_ms is None else time_ms / 1e3,
        loss=None if loss is None else number(loss),
        tokens_per_s=above_zero(first(fields, "tokens per sec")),
        device_tokens_per_s=above_zero(first(fields, "tokens per sec per gpu")),
        global_batch=above_zero(first(fields, "global batch size")),
        tflop_per_s=above_zero(first(fields, "model tflops per gpu")),
        memory_gib=None if peak is None else peak / _GIB,
        memory_kind="" if peak is None else "reserved" if reserved else "allocated",
    )
