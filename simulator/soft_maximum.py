"""Soft maximum of two overlapping times: host and device, or compute and messages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.formula_symbol import rendered_as_one

Array = NDArray[np.float64]


@rendered_as_one
def larger(a: Array, b: Array) -> Array:
    """The larger of two times, smoothed by a 6-norm because queues between host and device, and
    between streams, are imperfect. At most 2^(1/6) = 1.12 times the larger."""
    top = np.maximum(np.maximum(a, b), 1e-30)
    cube = (np.minimum(a, b) / top) ** 3
    return np.asarray(top * (1.0 + cube * cube) ** (1.0 / 6.0))


def exposed(work: Array, messages: Array, share: Array | float) -> Array:
    """Seconds that messages add to simultaneous work: the excess over the work, and a share of the
    overlapped part."""
    return larger(work, messages) - work + share * np.minimum(messages, work)
