"""Records of a training log's lines: a step, a fact about the run, or a mark between steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """A step as printed in a line; None for missing values.

    step, total     optimizer steps done, from 1; and of the whole training
    covers          steps of the line if printed; otherwise those since the last line
    time_s          seconds per step, the mean of the steps since the last such line
    bar_s           elapsed whole seconds of a progress bar
    smoothed        whether time_s is a running mean, in which a slow step also affects later steps
    bar             total and words before a progress bar: distinguishes training from evaluation
    device_tokens_per_s, tokens_per_s   of one device, and of all devices
    memory_gib      the highest memory so far or since the last line
    memory_kind     `allocated`, `reserved` or `device`
    """

    step: int
    total: int | None = None
    covers: float | None = None
    time_s: float | None = None
    bar_s: float | None = None
    smoothed: bool = False
    bar: str = ""
    loss: float | None = None
    tokens_per_s: float | None = None
    device_tokens_per_s: float | None = None
    samples_per_s: float | None = None
    global_batch: float | None = None
    tflop_per_s: float | None = None
    memory_gib: float | None = None
    memory_kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Figures of the whole run in a log: `devices`, `seq_len`, `global_batch`, `steps`,
    `runtime_s`, `evaluation_s`, and peaks of memory `memory_gib`."""

    values: Mapping[str, float]
    memory_kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTimes:
    """Seconds of parts of a step, by the names in the log."""

    seconds: Mapping[str, float] = field(default_factory=dict)


class LogEvent(IntFlag):
    """Events between two steps."""

    START = 1
    RESUME = 2
    CHECKPOINT = 4
    EVALUATION = 8
    FAILURE = 16
    FINISH = 32
    PROFILE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An event; `step` is the step from which training continues, 0 if not printed."""

    what: LogEvent
    step: int = 0


LogRecord = StepLine | Fact | PartTimes | Mark


class Reader(Protocol):
    """Reads the lines of one framework; may keep values of earlier lines."""

    name: str

    def read(self, line: str) -> LogRecord | None:
        """The record of a line, None for any other line."""
