"""The inner loop of `mixed_stages.suffix_sums` as machine code."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from planner.compiled import compiled
from planner.problem import Array

Index = npt.NDArray[np.int64]


@compiled
def put_in_front(times: Array, first_limits: Index, behind: Array, best: Array) -> None:
    """Lowers best[i, l] to the least of times[i, j] + behind[j, l] over the ends j of a stage that
    begins with block i and keeps limit l.

    times         [n, n+1]; first_limits  the first of the rising limits that each keeps
    behind, best  [n + 1, limits]
    """
    blocks, limits = times.shape[0], behind.shape[1]
    for i in range(blocks):
        for j in range(i + 1, blocks + 1):
            time_s = times[i, j]
            for limit in range(first_limits[i, j], limits):
                total = time_s + behind[j, limit]
                if total < best[i, limit]:
                    best[i, limit] = total
