"""The inner loop of planner/dominance.py as machine code; numba takes most of a second to load."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from planner.compiled import compiled


@compiled
def undominated_mask(
    edges: npt.NDArray[np.intp], columns: npt.NDArray[np.float64], slack: float
) -> npt.NDArray[np.bool_]:
    """[labels] whether no label kept before it in its group dominates a label."""
    keep = np.zeros(columns.shape[0], dtype=np.bool_)
    kept = np.empty(columns.shape[0], dtype=np.intp)
    width = columns.shape[1]
    for group in range(edges.size - 1):
        count = 0
        for label in range(edges[group], edges[group + 1]):
            dominated = False
            for position in range(count):
                other = kept[position]
                dominated = True
                for column in range(width):
                    if columns[other, column] > columns[label, column] + slack:
                        dominated = False
                        break
                if dominated:
                    # What dominates one often dominates the next: it is asked first.
                    for moved in range(position, 0, -1):
                        kept[moved] = kept[moved - 1]
                    kept[0] = other
                    break
            if not dominated:
                kept[count] = label
                count += 1
                keep[label] = True
    return keep
