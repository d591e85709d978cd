"""Slopes of step times: the share of a step that is proportional to each coefficient."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from simulator.training_run.step.features import Features
from simulator.training_run.step.step_time import step_parts

Array = NDArray[np.float64]

# Step of the finite differences, in the logarithm of a coefficient: the root of the smallest part a
# double resolves, as usual of one-sided differences.
NUDGE = 1.5e-8
# Runs whose slopes are computed side by side: arrays of 64 x 32 numbers stay in the cache.
_CHUNK = 64


def log_slopes(x: Features, c: Mapping[str, Array]) -> dict[str, Array]:
    """Kind of coefficient -> [runs] derivative of the step time's logarithm by that of the
    coefficient: 0.1 means 1 % of the step for 10 % of the coefficient.

    c  kind of coefficient -> [runs] values (coefficients.Assigned.of)
    """
    runs = x.microbatches.size
    chunks = [
        _slopes(x, c, np.arange(i, min(i + _CHUNK, runs))) for i in range(0, max(1, runs), _CHUNK)
    ]
    return {kind: np.concatenate([each[place] for each in chunks]) for place, kind in enumerate(c)}


def _slopes(x: Features, c: Mapping[str, Array], rows: NDArray[np.intp]) -> Array:
    """[kinds, rows] derivatives of these rows as in `log_slopes`, by finite differences: one call
    prices each row unchanged and with each kind of coefficient slightly larger."""
    variants = 1 + len(c)
    repeated = np.tile(rows, variants)
    nudged = {kind: np.tile(value[rows], variants) for kind, value in c.items()}
    for place, values in enumerate(nudged.values(), start=1):
        values[place * rows.size : (place + 1) * rows.size] *= math.exp(NUDGE)
    seconds = step_parts(x.rows(repeated), nudged).total_s.reshape(variants, rows.size)
    return np.asarray(np.log(seconds[1:] / seconds[0]) / NUDGE)
