"""What a group of ranks uses of a torus: the links of the axes that it spans.

A chip of a torus of d axes has two links per axis, and a link file's bandwidth is that of all
together. A ring along one whole axis uses that axis's share, both ways round; ranks that fill a
part of an axis have no link that closes the ring, so that data passes one way and back: half of it
(Austin et al., How to Scale Your Model, 2025, chapter 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from simulator.training_run.messages.rank_group import RankGroup


def torus_share(group: RankGroup, sides: Sequence[int]) -> float:
    """Share (above 0, at most 1) of a chip's links that a group uses; ranks are numbered with the
    first of `sides` innermost.

    >>> torus_share(RankGroup(((16, 1),)), (4, 4, 4))  # two of three axes
    0.6666666666666666
    >>> torus_share(RankGroup(((2, 1),)), (4, 4, 4))  # half of one
    0.16666666666666666
    """
    axes = len(sides)
    used = 0.0
    begins = 1
    for side in sides:
        ends = begins * side
        covered = math.prod(_on_axis(count, stride, begins, ends) for count, stride in group.axes)
        if covered >= side:
            used += 1.0 / axes
        elif covered > 1:
            used += 0.5 / axes
        begins = ends
    # Ranks that fill no axis in whole blocks still have a link each to the next one.
    return min(1.0, used) if used else 0.5 / axes


def _on_axis(count: int, stride: int, begins: int, ends: int) -> int:
    """Ranks of an axis of a group that a torus axis tells apart."""
    first, last = max(begins, stride), min(ends, stride * count)
    return max(1, last // first) if last > first else 1
