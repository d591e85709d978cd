"""Bands of step times from rows that were left out, and the intervals of whole sources left out:
what a new source would get, from the rows of the others alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.validate.cross_fit import Array, FitTable, LeftOut
from shardwright.validate.groups import source_of
from simulator.training_run.explain.predict_runs import unfitted_s
from simulator.training_run.fit.interval import (
    FEWEST,
    StepBands,
    band_of,
    group_band,
    may_stall,
    stalled_regimes,
    step_interval,
    step_width,
    widened,
)
from simulator.values.prediction import Interval

# Floors and ceilings that are tried, a factor of about 1.4 apart: from the 1 % to which step times
# are printed at best (from 0.5 % on the least is taken, and 88.5 % of known rows held instead of
# 89.9, 2026-11-23) to what sources left out miss by on average.
_FLOORS = (0.01, 0.014, 0.02, 0.028, 0.04, 0.056, 0.08, 0.11)
_CEILINGS = (0.04, 0.056, 0.08, 0.11, 0.16, 0.22, 0.32, 1.0)
# Of an interval's score: what a measured value outside costs, over the share that may lie outside.
_OUTSIDE = 2 / 0.1


def step_bands(
    table: FitTable, folds: LeftOut, sources: LeftOut, *, without: str = ""
) -> StepBands | None:
    """The bands of step times from the rows of all sources but one; None where there is no other.

    Of the floors and ceilings that are tried it is those under which intervals score best in the
    mean over sources, of rows left out with their source and with a fold alike: width and, weighed
    by 20, what lies outside, in the logarithm (Gneiting and Raftery, JASA 102(477), 2007, equation
    43). Jobs that may stall say nothing of other frameworks.

    folds, sources  with a fold, and with the whole source left out
    """
    rows: dict[str, list[int]] = {}
    stalled: dict[str, list[float]] = {}
    for place, run in enumerate(table.runs):
        source = source_of(run.id)
        if source == without:
            continue
        if may_stall(run):
            for name in stalled_regimes(run):
                stalled.setdefault(name, []).append(
                    float(table.measured_s[place] / folds.time_s[place])
                )
        else:
            rows.setdefault(source, []).append(place)
    if not rows:
        return None
    tried = [
        _bands_in_widths(table.measured_s, folds, sources, rows, floor, ceiling)
        for floor in _FLOORS
        for ceiling in _CEILINGS
    ]
    best, _ = min(tried, key=lambda each: each[1])
    bands = {n: band_of(ratios) for n, ratios in sorted(stalled.items()) if len(ratios) >= FEWEST}
    return replace(best, stalled=bands)


def _bands_in_widths(
    measured_s: Array,
    folds: LeftOut,
    sources: LeftOut,
    rows: dict[str, list[int]],
    floor: float,
    ceiling: float,
) -> tuple[StepBands, float]:
    """The bands with a floor and a ceiling, and their score."""
    both = [
        (np.log(measured_s / left.time_s), step_width(left.spread, floor, ceiling))
        for left in (sources, folds)
    ]
    miss, width = both[0]
    band = group_band({source: np.exp(miss[i] / width[i]).tolist() for source, i in rows.items()})
    low, high = math.log(band.low), math.log(band.high)
    scores = []
    for miss, width in both:
        outside = np.maximum(0.0, low * width - miss) + np.maximum(0.0, miss - high * width)
        each = (high - low) * width + _OUTSIDE * outside
        scores += [float(np.mean(each[i])) for i in rows.values()]
    bands = StepBands(
        low=low, high=high, floor=floor, ceiling=ceiling, rows=band.rows, sources=len(rows)
    )
    return bands, float(np.mean(scores))


def fold_intervals(
    table: FitTable, left: LeftOut, known: StepBands | None = None
) -> tuple[Interval, ...]:
    """[runs] 90 % intervals of step times that were left out, of the same bands for all: of the
    shipped ones, or of others. What no fitted run had widens them, as in predictions."""
    return _intervals(table, left, [known] * len(table.runs))


def source_intervals(table: FitTable, folds: LeftOut, left: LeftOut) -> tuple[Interval, ...]:
    """[runs] the same, each of the bands of other sources alone; of the shipped ones where there is
    no other source."""
    sources = [source_of(run.id) for run in table.runs]
    known = {name: step_bands(table, folds, left, without=name) for name in sorted(set(sources))}
    return _intervals(table, left, [known[name] for name in sources])


def _intervals(
    table: FitTable, left: LeftOut, known: Sequence[StepBands | None]
) -> tuple[Interval, ...]:
    times = left.time_s.tolist()
    rows = zip(
        table.runs,
        times,
        left.spread.tolist(),
        known,
        unfitted_s(table.runs, times),
        strict=True,
    )
    return tuple(
        widened(step_interval(run, time_s, spread, bands), unfitted)
        for run, time_s, spread, bands, unfitted in rows
    )
