"""Labels that no other of the same group dominates.

A label dominates another where it is at or under it in every column. Labels that come in the order
of a function that never falls when a column rises can only be dominated by earlier ones, so one
pass against those kept is enough.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]


def undominated(edges: Index, columns: Array, slack: float) -> Index:
    """Positions, rising, of the labels that none kept before them in their group dominates.

    edges    [groups + 1] where each group begins, and the number of labels at the end
    columns  [labels, columns] sorted in each group so that no label is dominated by a later one
    slack    in the columns' unit: a label that is better by no more than this counts as dominated
             (sums of equal numbers in another order differ by a few units in the last place)
    """
    kept: list[int] = []
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        rest = np.arange(begin, end)
        while rest.size:
            best = rest[0]
            kept.append(int(best))
            rest = rest[1:]
            rest = rest[(columns[rest] + slack < columns[best]).any(axis=1)]
    return np.asarray(kept, dtype=np.intp)
