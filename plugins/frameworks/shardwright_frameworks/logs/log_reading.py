"""`LogReading`: a training log read line by line, complete or still growing."""

from __future__ import annotations

import math
import re
from pathlib import Path

from shardwright_frameworks.logs.formats.deepspeed_log import DeepSpeedReader
from shardwright_frameworks.logs.formats.event_lines import mark_of
from shardwright_frameworks.logs.formats.lightning_log import LightningReader
from shardwright_frameworks.logs.formats.log_record import (
    Fact,
    LogEvent,
    LogRecord,
    Mark,
    PartTimes,
    Reader,
    StepLine,
)
from shardwright_frameworks.logs.formats.maxtext_log import MaxTextReader
from shardwright_frameworks.logs.formats.megatron_log import MegatronReader
from shardwright_frameworks.logs.formats.metric_block_log import MetricBlockReader
from shardwright_frameworks.logs.formats.mlperf_log import MLPerfReader
from shardwright_frameworks.logs.formats.nanotron_log import NanotronReader
from shardwright_frameworks.logs.formats.plain_log import PlainReader
from shardwright_frameworks.logs.formats.torchtitan_log import TorchtitanReader
from shardwright_frameworks.logs.formats.trainer_log import TrainerReader
from shardwright_frameworks.logs.line_origin import moment_of, origin_of
from shardwright_frameworks.logs.log_lines import LogLines
from shardwright_frameworks.logs.log_series import LogSeries

TELLING = (
    "{'",
    "train_step_timing",
    "reduced_train_loss",
    "approx flops per GPU",
    "samples per second",
    "samples_per_second",
    "tgs (tokens/gpu/second)",
    '"current_steps"',
)
"""Words in step lines that distinguish frameworks with the same format."""

_DIGITS = re.compile(r"[\d.,]+(?:[eE][-+]?\d+)?")
_SPACES = re.compile(r"\s+")
# Samples of a part of the step that are kept for its median.
_MOST_PARTS = 20_000
_MOST_SHAPES = 50
# Longer lines are no steps, but dumped tensors and configurations.
_LONGEST = 1 << 13
# A beginning of a line that is shorter is no sign of one that was cut.
_SHORTEST_CUT = 6


class LogReading:
    """Reads lines into steps (`series`, by reader and progress bar) and printed figures (`facts`).

    words      which of the `TELLING` words a line contains
    truncated  whether the file ends within a step's line
    """

    def __init__(self) -> None:
        self.readers: tuple[Reader, ...] = (
            MLPerfReader(),
            LightningReader(),  # before Megatron's: NeMo's lines look like it
            NanotronReader(),
            MegatronReader(),
            TorchtitanReader(),
            MaxTextReader(),
            DeepSpeedReader(),
            TrainerReader(),
            MetricBlockReader(),
        )
        self.plain: Reader = PlainReader()
        self.series: dict[tuple[str, str], LogSeries] = {}
        self.facts: dict[str, float] = {}
        self.peak_gib: dict[str, float] = {}
        self.parts: dict[str, list[float]] = {}
        self.lines = 0
        self.truncated = False
        self.damaged = ""
        self.words: set[str] = set()
        self.marks = LogEvent(0)
        self._resumed_at = 0
        self._shapes: dict[str, None] = {}

    def read_file(self, path: str | Path) -> None:
        """Read all lines of a file; raises DocumentError if it cannot be read."""
        lines = LogLines(path)
        held: str | None = None
        for line in lines:
            if held is not None:
                self.feed(held)
            held = line
        self.damaged = lines.damaged
        if held is not None and lines.cut:
            self.feed_last(held)
        elif held is not None:
            self.feed(held)

    def feed(self, line: str) -> None:
        """Read one line."""
        self.lines += 1
        if len(line) < 4 or line.isspace():
            return
        line = line[:_LONGEST]
        origin = origin_of(line)
        written, name = self._record_of(origin.text)
        if isinstance(written, StepLine):
            self._step(written, name, origin.rank, line)
            if "eval" not in line:
                return
        elif isinstance(written, Fact):
            self._fact(written)
        elif isinstance(written, PartTimes):
            for part, seconds in written.seconds.items():
                samples = self.parts.setdefault(part, [])
                if len(samples) < _MOST_PARTS:
                    samples.append(seconds)
        if "GPU utilization:" in line:
            self.words.add("GPU utilization:")
        mark = written if isinstance(written, Mark) else mark_of(origin.text)
        if mark is not None:
            self._mark(mark)

    def feed_last(self, line: str) -> None:
        """Read the last line of a file without an end of line; it is ignored if it is the beginning
        of a step's line."""
        shape = shape_of(origin_of(line).text)
        whole = self._shapes
        if shape not in whole and any(_begins(each, shape) for each in whole):
            self.truncated = True
            return
        self.feed(line)

    def _record_of(self, text: str) -> tuple[LogRecord | None, str]:
        for reader in self.readers:
            written = reader.read(text)
            if written is not None:
                return written, reader.name
        if not self.series or "" in {name for name, _ in self.series}:
            return self.plain.read(text), self.plain.name
        return None, ""

    def _step(self, written: StepLine, name: str, rank: str, line: str) -> None:
        key = (name, written.bar)
        series = self.series.get(key)
        if series is None:
            if name:  # earlier lines that looked like steps were others
                self.series.pop(("", ""), None)
            series = self.series[key] = LogSeries()
            series.mark(self.marks, self._resumed_at)
        self.words.update(word for word in TELLING if word in line)
        if len(self._shapes) < _MOST_SHAPES or self.lines % 1000 == 0:
            self._shapes[shape_of(origin_of(line).text)] = None
        series.add(written, rank, moment_of(line))

    def _fact(self, written: Fact) -> None:
        for name, value in written.values.items():
            if name == "memory_gib":
                kind = written.memory_kind
                self.peak_gib[kind] = max(self.peak_gib.get(kind, 0.0), value)
            elif name == "evaluation_s":
                self.facts[name] = self.facts.get(name, 0.0) + value
            else:
                self.facts[name] = value
        if "runtime_s" in written.values or "steps" in written.values:
            self.words.add("{'")

    def _mark(self, written: Mark) -> None:
        if LogEvent.START in written.what and LogEvent.FAILURE in self.marks:
            self.marks &= ~LogEvent.FAILURE
        self.marks |= written.what
        if LogEvent.RESUME in written.what and written.step:
            self._resumed_at = written.step
        for series in self.series.values():
            series.mark(written.what, written.step)


def shape_of(text: str) -> str:
    """A line with every number replaced by `#`, to compare the form of lines."""
    return _SPACES.sub(" ", _DIGITS.sub("#", text)).strip()


def _begins(whole: str, shape: str) -> bool:
    """Whether `shape` is the beginning of `whole`."""
    cut = shape.rstrip("#").rstrip()
    return len(cut) >= _SHORTEST_CUT and len(shape) < len(whole) and whole.startswith(cut)


def finite(value: float) -> float | None:
    """The finite number of a text; None for other texts."""
    return value if math.isfinite(value) else None
