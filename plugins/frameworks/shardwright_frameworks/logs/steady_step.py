"""`steady_step`: the steady step time of a log, and the steps excluded from it.

Excluded are the first steps of each attempt (compilation, caches), steps next to a checkpoint or an
evaluation, steps with another batch than the last (batch-size warm-up), and steps that take 1.5
times as long or more. The steady step is the median of the others, weighted by the steps that a
line covers; if the clock is too coarse for a median, their total seconds over their steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright_frameworks.logs.step_columns import Array, StepColumns

Mask = NDArray[np.bool_]

# Where a log shows the start, a first line that is slower than the level by this is warm-up, and
# so are its followers as long as they are slower by the second.
_FIRST, _STILL_WARM = 1.02, 1.1
# Steps slower than the level by this are not steady; those next to a mark by less.
_SLOW, _SLOW_MARKED = 1.5, 1.05
# A stall takes so many steps' time more than its steps, and its line is slower by this.
_STALL_STEPS, _STALL_LINE = 2.0, 1.2
# Lines this near the median are averaged where rounding blurs each.
_NEAR = 0.1
# A clock whose last digit is a larger share of a line's seconds gives no median.
_COARSE = 0.005
RECENT = 20
"""Lines from which the current speed is estimated."""

# Fewest lines for a drift.
_FEWEST_FOR_DRIFT = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyStep:
    """Seconds per step; nan for missing values.

    source    `printed`, `clock` or `rate`: the column of the times
    p10_s, p90_s  of the steady lines, None if the clock is too coarse
    recent_s  median of the last `RECENT` lines, including slow ones
    drift     last third of the steady lines over the first, minus 1; None for few lines
    steady    [lines] whether a line is steady
    share     of steady lines among the lines after the warm-up
    stalls    number of lines or gaps longer by several steps, without a reason in the log
    pauses    number of those with a reason: a checkpoint, an evaluation, a period
    warm_up_steps   number of steps in the warm-up
    warm_up_s, stalled_s, paused_s   seconds in addition to steady steps
    """

    time_s: float
    source: str
    p10_s: float | None
    p90_s: float | None
    recent_s: float
    drift: float | None
    steady: Mask
    share: float
    stalls: int
    pauses: int
    warm_up_steps: int
    warm_up_s: float
    stalled_s: float
    paused_s: float


def steady_step(x: StepColumns, chosen: Mask | None = None) -> SteadyStep | None:
    """The steady step of the `chosen` lines (default: all); None if no line has a time."""
    found = _times(x)
    if found is None:
        return None
    source, each_s, resolution_s = found
    use = np.isfinite(each_s) & _last_batch(x)
    if chosen is not None:
        use &= chosen
    if not use.any():
        use = np.isfinite(each_s) if chosen is None else np.isfinite(each_s) & chosen
    if not use.any():
        return None
    marked = x.saves | x.evaluates
    slack = 2.0 * resolution_s / np.maximum(x.covers, 1.0)
    level = _level(x, each_s, use, marked, slack)
    warm = _warm_up(x, each_s, use, level, slack)
    limit = np.where(marked, _SLOW_MARKED, _SLOW) * level + slack
    steady = use & ~warm & (each_s <= limit) & (each_s >= level / _SLOW - slack)
    if not steady.any():
        steady = use & ~warm if (use & ~warm).any() else use
    coarse = resolution_s > _COARSE * float(np.median(each_s[steady] * x.covers[steady]))
    weights = x.covers[steady]
    if coarse and source == "clock":
        level = float((each_s[steady] * weights).sum() / weights.sum())
    else:
        level = quantile(each_s[steady], weights, 0.5)
        if coarse:  # of a bar's rate: rounding errors of neighboring lines cancel
            near = steady & (np.abs(each_s / level - 1.0) <= max(_NEAR, 3 * resolution_s / level))
            if near.any():
                level = float((each_s[near] * x.covers[near]).sum() / x.covers[near].sum())
    stalls, pauses, lost = _interruptions(x, each_s, level, resolution_s, use & ~warm, marked)
    warm_s = float(((each_s - level) * x.covers)[warm].sum()) if warm.any() else 0.0
    return SteadyStep(
        time_s=level,
        source=source,
        p10_s=None if coarse else quantile(each_s[steady], weights, 0.1),
        p90_s=None if coarse else quantile(each_s[steady], weights, 0.9),
        recent_s=_recent(each_s, x.covers, use & ~warm, level, coarse=coarse),
        drift=_drift(each_s, x.covers, steady),
        steady=steady,
        share=float(steady.sum() / max(1, int((use & ~warm).sum()))),
        stalls=stalls,
        pauses=pauses,
        warm_up_steps=int(x.covers[warm].sum()),
        warm_up_s=max(0.0, warm_s),
        stalled_s=lost[0],
        paused_s=lost[1],
    )


def quantile(values: Array, weights: Array, share: float) -> float:
    """The weighted quantile; between two values, their mean.

    >>> quantile(np.asarray([1.0, 2.0, 9.0]), np.asarray([1.0, 1.0, 1.0]), 0.5)
    2.0
    """
    order = np.argsort(values, kind="stable")
    ordered, weight = values[order], weights[order]
    passed = np.cumsum(weight)
    at = share * passed[-1]
    low = int(np.searchsorted(passed, at * (1 - 1e-12)))
    high = int(np.searchsorted(passed, at * (1 + 1e-12), side="right"))
    last = ordered.size - 1
    return float((ordered[min(low, last)] + ordered[min(high, last)]) / 2)


def _times(x: StepColumns) -> tuple[str, Array, float] | None:
    """[lines] seconds per step from the best column, and the last digit of its clock.

    A printed time is preferred if half of the lines have one. A bar's rate is missing for some
    lines after a jump, and its clock counts whole seconds.
    """
    if not len(x):
        return None
    clock_s = np.where(x.wall_s > 0, x.wall_s / x.covers, np.nan)
    printed = np.isfinite(x.time_s).mean()
    if printed >= (0.2 if x.smoothed else 0.5) or (printed > 0 and not np.isfinite(clock_s).any()):
        return ("rate" if x.smoothed else "printed"), x.time_s, x.time_resolution_s
    if np.isfinite(clock_s).any():
        return "clock", clock_s, x.clock_resolution_s
    batch = float(np.nanmax(x.global_batch)) if np.isfinite(x.global_batch).any() else math.nan
    by_rate = batch / x.samples_per_s
    return ("printed", by_rate, 0.0) if np.isfinite(by_rate).any() else None


def _last_batch(x: StepColumns) -> Mask:
    """[lines] whether the batch equals the last printed one."""
    known = np.flatnonzero(np.isfinite(x.global_batch))
    if not known.size:
        return np.ones(len(x), dtype=np.bool_)
    last = x.global_batch[known[-1]]
    return np.asarray(~np.isfinite(x.global_batch) | (x.global_batch == last))


def _first_lines(x: StepColumns) -> Mask:
    """[lines] whether a line is the first of an attempt."""
    return np.concatenate([[True], np.diff(x.attempt) > 0])


def _level(x: StepColumns, each_s: Array, use: Mask, marked: Mask, slack: Array) -> float:
    """First estimate of the steady step: the median without first and marked lines; with a coarse
    clock, the mean without slow lines."""
    quiet = use & ~marked & ~_first_lines(x)
    for fewer in (quiet, use & ~_first_lines(x), use):
        if fewer.sum() >= min(3, int(use.sum())):
            quiet = fewer
            break
    values, weights = each_s[quiet], x.covers[quiet]
    level = quantile(values, weights, 0.5)
    if slack[quiet].max() < _COARSE * level:
        return level
    level = float((values * weights).sum() / weights.sum())
    for _ in range(20):
        kept = values <= _SLOW * level + slack[quiet]
        if not kept.any():
            break
        level = float((values * weights)[kept].sum() / weights[kept].sum())
    return level


def _warm_up(x: StepColumns, each_s: Array, use: Mask, level: float, slack: Array) -> Mask:
    """[lines] slower than the level at the beginning of an attempt, at most half of its lines."""
    warm = np.zeros(len(x), dtype=np.bool_)
    for number in np.unique(x.attempt):
        lines = np.flatnonzero((x.attempt == number) & use)
        for place, line in enumerate(lines[: max(1, lines.size // 2)]):
            over = (_FIRST if place == 0 else _STILL_WARM) if x.started[line] else _SLOW
            if lines.size == 1 or each_s[line] <= over * level + slack[line]:
                break
            warm[line] = True
    return warm


def _interruptions(
    x: StepColumns, each_s: Array, level: float, resolution_s: float, use: Mask, marked: Mask
) -> tuple[int, int, tuple[float, float]]:
    """Numbers of stalls and of pauses with a reason, and the seconds of each."""
    expected = level * x.covers
    by_clock = x.wall_s - expected - 2.0 * x.clock_resolution_s
    by_line = (each_s - level) * x.covers - 2.0 * resolution_s
    excess = np.fmax(np.nan_to_num(by_clock, nan=-np.inf), np.nan_to_num(by_line, nan=-np.inf))
    within = use | (np.isfinite(x.wall_s) & ~_first_lines(x) & ~np.isfinite(each_s))
    slow = within & (excess >= _STALL_STEPS * level) & (excess >= (_STALL_LINE - 1.0) * expected)
    spread = _spread(each_s[use], level)
    slow &= excess >= 6.0 * spread * x.covers
    unnamed = slow & ~marked
    if _periodic(x.step[unnamed], x.step):
        marked = marked | unnamed
        unnamed = np.zeros_like(unnamed)
    named = slow & marked
    lost = (float(excess[unnamed].sum()), float(excess[named].sum()))
    return int(unnamed.sum()), int(named.sum()), lost


def _spread(values: Array, level: float) -> float:
    """A robust standard deviation: 1.4826 times the median distance from the level."""
    return 1.4826 * float(np.median(np.abs(values - level))) if values.size else 0.0


def _periodic(slow: Array, steps: Array) -> bool:
    """Whether slow steps are at multiples of some number, as for a checkpoint that is not
    logged."""
    places = np.unique(slow.astype(np.int64))
    if places.size < 4:
        return False
    period = int(np.gcd.reduce(np.diff(places)))
    span = float(steps.max() - steps.min())
    return period >= 5 and places.size >= 0.7 * math.floor(span / period)


def _recent(each_s: Array, covers: Array, use: Mask, level: float, *, coarse: bool) -> float:
    lines = np.flatnonzero(use)[-RECENT:]
    if not lines.size:
        return level
    if coarse:
        return float((each_s[lines] * covers[lines]).sum() / covers[lines].sum())
    return quantile(each_s[lines], covers[lines], 0.5)


def _drift(each_s: Array, covers: Array, steady: Mask) -> float | None:
    lines = np.flatnonzero(steady)
    if lines.size < _FEWEST_FOR_DRIFT:
        return None
    third = lines.size // 3
    begin, end = lines[:third], lines[-third:]
    first = float((each_s[begin] * covers[begin]).sum() / covers[begin].sum())
    last = float((each_s[end] * covers[end]).sum() / covers[end].sum())
    return last / first - 1.0
