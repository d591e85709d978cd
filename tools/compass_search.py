"""Compass search: a minimum of a function of few parameters, without derivatives or randomness."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def compass_search(loss: Callable[[Array], float], first: Array, low: Array, high: Array) -> Array:
    """The point within the bounds from which no step along an axis lowers the loss any more.

    Kolda, Lewis and Torczon 2003, SIAM Rev. 45:385, with one step size per axis: it grows by 1.3
    after a success and halves after a failure, from 15 % of the bounds down to 0.2 %.
    """
    point, best = first.copy(), loss(first)
    steps = 0.15 * (high - low)
    finest = 0.002 * (high - low)
    while np.any(steps > finest):
        for axis in range(point.size):
            moved = False
            for sign in (1.0, -1.0):
                trial = point.copy()
                trial[axis] = np.clip(trial[axis] + sign * steps[axis], low[axis], high[axis])
                value = loss(trial)
                if value < best - 1e-6:
                    point, best, moved = trial, value, True
                    break
            steps[axis] *= 1.3 if moved else 0.5
    return point
