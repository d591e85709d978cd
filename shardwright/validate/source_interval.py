"""Bands of step times from rows that were left out, and the intervals of whole sources left out:
what a new source would get, from the rows of the others alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.stats import t as student

from shardwright.validate.cross_fit import Array, FitTable, LeftOut
from shardwright.validate.groups import source_of
from simulator.training_run.explain.predict_runs import unfitted_s
from simulator.training_run.fit.interval import (
    FEWEST,
    StepBands,
    band_of,
    may_stall,
    stalled_regimes,
    step_interval,
    step_width,
    widened,
)
from simulator.values.prediction import Interval

# Misses in widths are t-distributed with so many degrees of freedom, a usual number where they are
# not fitted (Lange, Little and Taylor, JASA 84(408), 1989). With sources left out, and with halves
# of them, 4 to 10 give interval scores 0.004 apart, 3 one that is 0.008 worse (2026-11-23).
_FREEDOM = 4.0
_OF_NINE_TENTHS = float(student.ppf(0.95, _FREEDOM))
# Between which logarithms the ceiling is searched: steps are hardly known to 1 %, and no source
# left out misses by a factor of e.
_CEILINGS = (math.log(0.01), 0.0)
# Of a miss in widths that is 0, its square.
_NO_MISS = 1e-12
# A scale is found when its square changes by less than this share.
_GAIN = 1e-10
_MOST_ROUNDS = 500


def step_bands(
    table: FitTable, folds: LeftOut, sources: LeftOut, *, without: str = ""
) -> StepBands | None:
    """The bands of step times from the rows of all sources but one; None where there is no other.

    A miss is the logarithm of measured over predicted. In widths (`step_width`) it follows a
    t-distribution about a median of 0, with another scale on either side: the two scales and the
    ceiling are those of the greatest likelihood of rows left out with their source and with a fold
    alike, each with its weight in a fit. The band ends at the 5 % and 95 % quantiles. Jobs that
    may stall say nothing of other frameworks.

    folds, sources  with a fold, and with the whole source left out
    """
    rows: list[int] = []
    stalled: dict[str, list[float]] = {}
    for place, run in enumerate(table.runs):
        if source_of(run.id) == without:
            continue
        if may_stall(run):
            for name in stalled_regimes(run):
                stalled.setdefault(name, []).append(
                    float(table.measured_s[place] / folds.time_s[place])
                )
        elif table.weights[place] > 0:
            rows.append(place)
    if not rows:
        return None
    both = (sources, folds)
    miss = np.concatenate([np.log(table.measured_s / left.time_s)[rows] for left in both])
    spread = np.concatenate([left.spread[rows] for left in both])
    weights = np.tile(table.weights[rows], len(both))

    def scaled(ceiling: float) -> tuple[list[float], float]:
        """The scales below and above the prediction, and minus the logarithm of the likelihood."""
        width = step_width(spread, math.exp(ceiling))
        sides = [miss < 0, miss >= 0]
        scales = [_scale(miss[mine] / width[mine], weights[mine]) for mine in sides]
        each = np.where(sides[0], scales[0], scales[1]) * width
        return scales, -float(weights @ (student.logpdf(miss / each, _FREEDOM) - np.log(each)))

    ceiling = float(minimize_scalar(lambda x: scaled(x)[1], bounds=_CEILINGS, method="bounded").x)
    below, above = scaled(ceiling)[0]
    return StepBands(
        low=-_OF_NINE_TENTHS * below,
        high=_OF_NINE_TENTHS * above,
        ceiling=math.exp(ceiling),
        rows=len(rows),
        sources=len({source_of(table.runs[row].id) for row in rows}),
        stalled={n: band_of(each) for n, each in sorted(stalled.items()) if len(each) >= FEWEST},
    )


def _scale(misses: Array, weights: Array) -> float:
    """The scale of a t-distribution about 0 under which misses are likeliest, 0 for none: by
    expectation and maximisation, a weighted mean of squares (Lange, Little and Taylor)."""
    if not misses.size:
        return 0.0
    squares = np.maximum(misses**2, _NO_MISS)
    found = float(np.average(squares, weights=weights))
    for _ in range(_MOST_ROUNDS):
        before = found
        each = squares * (_FREEDOM + 1.0) / (_FREEDOM + squares / before)
        found = float(np.average(each, weights=weights))
        if abs(found / before - 1.0) < _GAIN:
            break
    return math.sqrt(found)


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
