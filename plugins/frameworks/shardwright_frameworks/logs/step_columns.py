"""`StepColumns`: the steps of all attempts of a log as arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright_frameworks.logs.formats.log_record import LogEvent
from shardwright_frameworks.logs.formats.progress_bar import rounding_s, unsmoothed
from shardwright_frameworks.logs.log_series import Attempt, LogSeries

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumns:
    """Arrays [lines]; nan for missing values.

    attempt, step   number of the attempt, and the step as printed
    started   whether the attempt's beginning is in the log
    covers    optimizer steps since the previous line of the attempt
    time_s    seconds per step as printed, the mean of those steps
    time_resolution_s   rounding error of their last digit, if it matters
    wall_s    seconds of the clock since the previous line of the attempt
    clock_resolution_s   last digit of that clock, 0 without one
    smoothed  whether they are computed from a running mean
    saves, evaluates   whether the log has a checkpoint, or an evaluation or profile, since then
    """

    attempt: NDArray[np.intp]
    started: NDArray[np.bool_]
    step: Array
    covers: Array
    time_s: Array
    time_resolution_s: float
    wall_s: Array
    clock_resolution_s: float
    smoothed: bool
    saves: NDArray[np.bool_]
    evaluates: NDArray[np.bool_]
    global_batch: Array
    loss: Array
    tokens_per_s: Array
    device_tokens_per_s: Array
    samples_per_s: Array
    tflop_per_s: Array

    def __len__(self) -> int:
        return int(self.step.size)


def step_columns(series: LogSeries) -> StepColumns:
    """The columns of a series; empty without steps."""
    attempts = [a for a in series.attempts if len(a)]
    every = usual_interval([np.asarray(a.columns["step"]) for a in attempts])

    def joined(name: str) -> Array:
        parts = [np.asarray(a.columns[name], dtype=np.float64) for a in attempts]
        return np.concatenate(parts) if parts else np.empty(0)

    covers = [
        _covers(np.asarray(a.columns["step"]), np.asarray(a.columns["covers"]), every)
        for a in attempts
    ]
    with_bar = np.isfinite(joined("bar_s")).mean() > 0.5 if attempts else False
    clock = "bar_s" if with_bar else "at_s"
    walls = [_since(np.asarray(a.columns[clock])) for a in attempts]
    marks = joined("marks").astype(np.int64)
    return StepColumns(
        attempt=np.repeat(np.arange(len(attempts)), [len(a) for a in attempts]).astype(np.intp),
        started=np.repeat(
            np.asarray([_started(a, c[0]) for a, c in zip(attempts, covers, strict=True)], bool),
            [len(a) for a in attempts],
        ),
        step=joined("step"),
        covers=np.concatenate(covers) if covers else np.empty(0),
        time_s=_times(series, attempts, covers),
        time_resolution_s=_rounding_s(series),
        wall_s=np.concatenate(walls) if walls else np.empty(0),
        clock_resolution_s=1.0 if with_bar else series.resolution_s,
        smoothed=series.smoothed,
        saves=(marks & int(LogEvent.CHECKPOINT)) > 0,
        evaluates=(marks & int(LogEvent.EVALUATION | LogEvent.PROFILE)) > 0,
        global_batch=joined("global_batch"),
        loss=joined("loss"),
        tokens_per_s=joined("tokens_per_s"),
        device_tokens_per_s=joined("device_tokens_per_s"),
        samples_per_s=joined("samples_per_s"),
        tflop_per_s=joined("tflop_per_s"),
    )


def _rounding_s(series: LogSeries) -> float:
    """Rounding error of a bar's rates in seconds; printed times have enough digits."""
    rates = [np.asarray(attempt.columns["time_s"]) for attempt in series.attempts]
    known = np.concatenate([each[np.isfinite(each)] for each in rates]) if rates else np.empty(0)
    return rounding_s(float(np.median(known))) if series.smoothed and known.size else 0.0


def _times(series: LogSeries, attempts: Sequence[Attempt], covers: Sequence[Array]) -> Array:
    """Printed seconds per step, with running means reversed."""
    found = [np.asarray(attempt.columns["time_s"]) for attempt in attempts]
    if series.smoothed:
        found = [
            _of_bar(rates, each, attempt)
            for rates, each, attempt in zip(found, covers, attempts, strict=True)
        ]
    return np.concatenate(found) if found else np.empty(0)


def _of_bar(rates: Array, covers: Array, attempt: Attempt) -> Array:
    """Seconds per step of a bar. If it begins after the first step, its clock shows whether its
    beginning is missing, or it jumped there because a checkpoint was loaded."""
    first = attempt.first_step
    if first <= covers[0]:
        return unsmoothed(rates, covers, from_start=True)
    late = rates[rates.size // 2 :]
    if not np.isfinite(late).any():
        return unsmoothed(rates, covers, from_start=False)
    clock_s, usual_s = attempt.columns["bar_s"][0], float(np.nanmedian(late))
    # A first rate that is the whole clock over the whole jump, and not the later rate.
    whole = abs(rates[0] * first - clock_s) <= 1.0 + 0.01 * clock_s
    if clock_s < 0.5 * first * usual_s or (whole and abs(rates[0] / usual_s - 1.0) > 0.2):
        return unsmoothed(rates, np.concatenate([[first], covers[1:]]), from_start=True)
    return unsmoothed(rates, covers, from_start=False)


def _started(attempt: Attempt, covers: float) -> bool:
    """Whether the log has a start or a loaded checkpoint before the first line, or the first
    step."""
    return attempt.after_start or attempt.resumed_at > 0 or attempt.first_step <= max(1.0, covers)


def usual_interval(steps: Sequence[Array]) -> int:
    """The most frequent number of steps between two printed lines; 1 for a single line.

    >>> usual_interval([np.asarray([1.0, 10.0, 20.0, 30.0])])
    10
    """
    counts: Counter[int] = Counter()
    for each in steps:
        found, times = np.unique(np.diff(each), return_counts=True)
        for interval, count in zip(found.tolist(), times.tolist(), strict=True):
            counts[int(interval)] += count
    return max(counts, key=lambda n: (counts[n], -n)) if counts else 1


def _covers(steps: Array, placed: Array, every: int) -> Array:
    """Steps covered by each line: as printed, otherwise since the previous line. A first line
    covers the usual interval, unless the training began within it."""
    first = min(float(every), max(1.0, float(steps[0])))
    if steps[0] % every and steps[0] > every:
        first = float(steps[0] % every)  # resumed within an interval, printed at its end or start
    since = np.concatenate([[first], np.maximum(1.0, np.diff(steps))])
    return np.where(np.isfinite(placed), placed, since)


def _since(clock: Array) -> Array:
    """[lines] seconds since the previous line with a time; nan for the first."""
    found = np.full(clock.size, np.nan)
    known = np.flatnonzero(np.isfinite(clock))
    if known.size > 1:
        gaps = np.diff(clock[known])
        direct = np.diff(known) == 1
        found[known[1:][direct]] = gaps[direct]
    found[found < 0] = np.nan
    return found
