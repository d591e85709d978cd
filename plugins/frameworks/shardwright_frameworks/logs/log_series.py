"""`LogSeries`: the steps of one log in order, from any rank, with restarts separated.

A step printed by several ranks counts once. A new attempt begins if a rank prints an earlier step
again, or after a start in the log. Mixed lines of ranks without names are recognized by steps that
are printed several times, a step or two apart.
"""

from __future__ import annotations

import math
from array import array
from collections import deque

from shardwright_frameworks.logs.formats.log_record import LogEvent, StepLine
from shardwright_frameworks.logs.line_origin import Moment

FIELDS = (
    "step",
    "time_s",
    "bar_s",
    "at_s",
    "covers",
    "loss",
    "tokens_per_s",
    "device_tokens_per_s",
    "samples_per_s",
    "global_batch",
    "tflop_per_s",
    "marks",
)
MOST_STEPS = 2_000_000
"""Number of step lines kept of a log; further lines are only counted."""

_LINE_FIELDS = FIELDS[1:3] + FIELDS[4:-1]
_RECENT = 64
# Ranks that are followed one by one, and steps kept of each for their medians.
_MOST_RANKS, _STEPS_OF_RANK = 4096, 2000
_DAY_S = 86400.0
_LAST_STEP = 10**12


class Attempt:
    """The steps from a start to an end, as columns; nan where a line has no value.

    after_start   whether the log has a start before its first step
    resumed_at    step of the checkpoint loaded before its first step; 0 for none
    """

    def __init__(self, *, after_start: bool, resumed_at: int) -> None:
        self.after_start, self.resumed_at = after_start, resumed_at
        self.columns = {name: array("d") for name in FIELDS}

    def __len__(self) -> int:
        return len(self.columns["step"])

    @property
    def first_step(self) -> int:
        """The first printed step."""
        return int(self.columns["step"][0])

    @property
    def last_step(self) -> int:
        """The last printed step."""
        return int(self.columns["step"][-1])


class LogSeries:
    """Collects step lines into `attempts`.

    resolution_s  of the times of day
    smoothed      whether printed times are running means
    rank_times    samples of seconds per step (or of the inverse of tokens/s) of each named rank
    """

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.resolution_s = 0.0
        self.smoothed = False
        self.lines = 0
        self.total: int | None = None
        self.peak_gib: dict[str, float] = {}
        self.rank_times: dict[str, array[float]] = {}
        self._steps = 0
        self._marks = LogEvent(0)
        self._resumed_at = 0
        self._last_of: dict[str, int] = {}
        self._recent: dict[int, int] = {}
        self._order: deque[int] = deque()
        self._repeated = 0
        self._day_s = 0.0
        self._last_clock = -math.inf

    def mark(self, what: LogEvent, step: int = 0) -> None:
        """Record an event before the next step."""
        self._marks |= what
        if LogEvent.RESUME in what and step:
            self._resumed_at = step

    @property
    def marks_after(self) -> LogEvent:
        """Events after the last step."""
        return self._marks

    def add(self, line: StepLine, origin: str, moment: Moment | None) -> None:
        """Add a step line."""
        if line.step > _LAST_STEP:
            return  # a line that is broken
        self.lines += 1
        self.smoothed = line.smoothed or self.smoothed
        self.total = line.total or self.total
        if line.memory_gib is not None:
            kind = line.memory_kind
            self.peak_gib[kind] = max(self.peak_gib.get(kind, 0.0), line.memory_gib)
        self._sample(line, origin)
        last = self._last_of.get(origin)
        if self._goes_back(line, origin, last):
            self._begin()
        if not self.attempts:
            self._begin()
        self._last_of[origin] = line.step
        place = self._recent.get(line.step)
        if place is not None:
            self._fill(place, line, moment)
        elif self._steps < MOST_STEPS:
            self._append(line, moment)

    def _goes_back(self, line: StepLine, origin: str, last: int | None) -> bool:
        """Whether the line begins a new attempt."""
        if not self.attempts:
            return False
        attempt = self.attempts[-1]
        if LogEvent.START in self._marks and line.step not in self._recent:
            return True
        if LogEvent.START in self._marks and line.step != attempt.last_step:
            return True
        newest = attempt.last_step
        if last is None:
            return line.step < newest and line.step not in self._recent
        if line.step >= last:
            return False
        mixed = not origin and self._repeated > 0.3 * len(attempt)
        return not (mixed and line.step in self._recent and self._lag(line.step) <= 3)

    def _lag(self, step: int) -> int:
        """Number of printed steps between this one and the newest."""
        return sum(1 for other in self._order if other > step)

    def _begin(self) -> None:
        self.attempts.append(
            Attempt(after_start=LogEvent.START in self._marks, resumed_at=self._resumed_at)
        )
        self._resumed_at = 0
        self._last_of.clear()
        self._recent.clear()
        self._order.clear()
        self._repeated = 0

    def _append(self, line: StepLine, moment: Moment | None) -> None:
        columns = self.attempts[-1].columns
        columns["step"].append(line.step)
        columns["at_s"].append(self._clock(moment))
        columns["marks"].append(float(self._marks))
        for name in _LINE_FIELDS:
            value = getattr(line, name)
            columns[name].append(math.nan if value is None else value)
        self._marks = LogEvent(0)
        self._steps += 1
        self._recent[line.step] = len(columns["step"]) - 1
        self._order.append(line.step)
        if len(self._order) > _RECENT:
            self._recent.pop(self._order.popleft(), None)

    def _fill(self, place: int, line: StepLine, moment: Moment | None) -> None:
        """Add the values of another line for a known step."""
        columns = self.attempts[-1].columns
        for name in _LINE_FIELDS:
            value = getattr(line, name)
            if value is None:
                continue
            if math.isnan(columns[name][place]):
                columns[name][place] = value
            elif name == "loss":
                self._repeated += 1
        if moment is not None and math.isnan(columns["at_s"][place]):
            columns["at_s"][place] = self._clock(moment)

    def _clock(self, moment: Moment | None) -> float:
        if moment is None:
            return math.nan
        self.resolution_s = max(self.resolution_s, moment.resolution_s)
        if moment.daily:
            if moment.time_s + self._day_s < self._last_clock - _DAY_S / 2:
                self._day_s += _DAY_S
            self._last_clock = moment.time_s + self._day_s
            return self._last_clock
        return moment.time_s

    def _sample(self, line: StepLine, origin: str) -> None:
        value = line.time_s
        if value is None and line.device_tokens_per_s:
            value = 1.0 / line.device_tokens_per_s
        if not origin or value is None or line.step <= 1:
            return
        times = self.rank_times.get(origin)
        if times is None:
            if len(self.rank_times) >= _MOST_RANKS:
                return
            times = self.rank_times[origin] = array("d")
        if len(times) < _STEPS_OF_RANK:
            times.append(value)
