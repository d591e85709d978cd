"""Splits of a chain that differ from one by a single block."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from planner.problem import Partition


def neighbours(found: Partition) -> Iterator[tuple[int, ...]]:
    """Splits in which one stage gives a block to another: the cuts between them move by one.

    >>> list(neighbours(Partition(starts=(0, 2), strategies=(0, 0, 0), step_time_s=1.0)))
    [(0, 1)]
    """
    starts, ends = found.starts, found.ends()
    for giver, taker in itertools.permutations(range(len(starts)), 2):
        if ends[giver] - starts[giver] == 1:
            continue
        if giver < taker:
            yield tuple(at - (giver < s <= taker) for s, at in enumerate(starts))
        else:
            yield tuple(at + (taker < s <= giver) for s, at in enumerate(starts))
