"""Slopes of step times: the share of a step that is proportional to each coefficient."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from simulator.training_run.step.features import Features
from simulator.training_run.step.step_time import step_parts

Array = NDArray[np.float64]

# Step of the finite differences, in the logarithm of a coefficient: the root of what a double
# resolves, as usual of one-sided differences.
NUDGE = 1.5e-8
# Runs whose slopes are computed side by side: arrays of 64 x 32 numbers stay in the cache.
_CHUNK = 64


def log_slopes(x: Features, c: Mapping[str, Array]) -> dict[str, Array]:
    """Per kind of coefficient [runs] the derivative of the step time's logarithm by that of the
    coefficient; 0.1 is 1 % of the step for 10 % of the coefficient.

    c  per kind of coefficient the value of every run (coefficients.Assigned.of)
    """
    runs = x.microbatches.size
    chunks = [
        _slopes(x, c, np.arange(i, min(i + _CHUNK, runs))) for i in range(0, max(1, runs), _CHUNK)
    ]
    return {kind: np.concatenate([each[place] for each in chunks]) for place, kind in enumerate(c)}


def _slopes(x: Features, c: Mapping[str, Array], rows: NDArray[np.intp]) -> Array:
    """[kinds, rows] of some of the runs: all predictions, as they are and with one kind a little
    larger each, in one call."""
    variants = 1 + len(c)
    repeated = np.tile(rows, variants)
    nudged = {kind: np.tile(value[rows], variants) for kind, value in c.items()}
    for place, values in enumerate(nudged.values(), start=1):
        values[place * rows.size : (place + 1) * rows.size] *= math.exp(NUDGE)
    seconds = step_parts(x.rows(repeated), nudged).total_s.reshape(variants, rows.size)
    return np.asarray(np.log(seconds[1:] / seconds[0]) / NUDGE)
