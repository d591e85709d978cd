"""Random numbers for compiled loops: their whole state is one array that the caller keeps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bench.compiled import compiled


def random_state(rng: np.random.Generator) -> NDArray[np.uint64]:
    """A state that `rng` decides; it may not be 0."""
    return rng.integers(1, 2**63 - 1, size=1, dtype=np.uint64)


@compiled
def uniform(state: NDArray[np.uint64]) -> float:
    """Uniform in [0, 1): xorshift64* (Marsaglia 2003, Vigna 2016)."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * (1.0 / 9007199254740992.0)
