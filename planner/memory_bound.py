"""How memory bounds the time of the busiest rank, whatever blocks it holds.

Of the chain's most repeated kind there are N equal blocks. A rank that holds c of them keeps, when
it keeps most, k micro-batches of each, k being that of the block's stage; at least if the blocks
lie in the stages with the least k. What exceeds the room must be computed again: the lower convex
hull of (saved bytes, seconds) over the strategies says at which price, and the fractional knapsack
(Dantzig, Operations Research 5(2), 1957) takes the cheapest first. That gives T(c), which rises
with c. All N blocks lie somewhere, hence the busiest rank takes at least the N-th smallest value
among T(1), T(2), ... of all ranks. Other blocks are left out: they only add.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from planner.problem import Array


def least_longest_s(
    *,
    seconds: Array,
    saved_bytes: Array,
    static_bytes: Array,
    room_bytes: Sequence[float],
    edge_bytes: float,
    in_flight: Sequence[tuple[int, ...]],
    most_per_stage: int,
) -> float:
    """Seconds per micro-batch of the busiest rank, at least; infinite where N blocks do not fit.

    seconds, saved_bytes   [S] of one block under each strategy, forward and backward
    static_bytes  [N] of 1, 2, ... N blocks
    room_bytes    per rank, of its device less what is there in any case
    edge_bytes    per stage and micro-batch in flight that may be kept less than the blocks save
    in_flight     per rank, of each of its stages
    most_per_stage   blocks that one stage holds at most
    """
    number = len(static_bytes)
    hull_bytes, hull_s = lower_hull(saved_bytes, seconds)
    ranks = Counter(
        (tuple(sorted(kept)), room) for kept, room in zip(in_flight, room_bytes, strict=True)
    )
    times = []
    for (kept, free), count in sorted(ranks.items()):
        room = free - static_bytes + edge_bytes * sum(kept)
        time = _least_seconds(hull_bytes, hull_s, kept, most_per_stage, room)
        # Rounding apart, the time is rising already.
        times += [np.maximum.accumulate(time)] * count
    every = np.concatenate(times)
    return float(np.partition(every, number - 1)[number - 1])


def _least_seconds(
    hull_bytes: Array, hull_s: Array, kept: tuple[int, ...], most_per_stage: int, room: Array
) -> Array:
    """[N] least seconds of 1, 2, ... N blocks of a rank; infinite where they do not fit.

    kept  rising micro-batches in flight of its stages
    """
    counts = np.arange(1, len(room) + 1)
    held = [
        np.clip(counts - stage * most_per_stage, 0, most_per_stage) for stage in range(len(kept))
    ]
    excess = sum(k * blocks for k, blocks in zip(kept, held, strict=True)) * hull_bytes[-1] - room
    seconds = counts * hull_s[-1]
    offers = sorted(
        ((hull_s[e] - hull_s[e + 1]) / (hull_bytes[e + 1] - hull_bytes[e]) / k, -e, stage)
        for e in range(len(hull_bytes) - 1)
        for stage, k in enumerate(kept)
    )
    for price, segment, stage in offers:
        width = hull_bytes[1 - segment] - hull_bytes[-segment]
        freed = np.clip(excess, 0.0, kept[stage] * held[stage] * width)
        seconds = seconds + freed * price
        excess = excess - freed
    impossible = (excess > 1e-9 * np.abs(room)) | (counts > len(kept) * most_per_stage)
    return np.asarray(np.where(impossible, np.inf, seconds))


def lower_hull(saved_bytes: Array, seconds: Array) -> tuple[Array, Array]:
    """Corners of the lower convex hull, by rising bytes, down to the least seconds."""
    corners: list[tuple[float, float]] = []
    for point in sorted(zip(saved_bytes.tolist(), seconds.tolist(), strict=True)):
        if corners and point[1] >= corners[-1][1]:
            continue
        while len(corners) > 1 and _above(corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    hull = np.asarray(corners)
    return hull[:, 0], hull[:, 1]


def _above(
    left: tuple[float, float], middle: tuple[float, float], right: tuple[float, float]
) -> bool:
    """True where the middle point does not lie under the line from left to right."""
    rise = (middle[1] - left[1]) * (right[0] - left[0])
    return rise >= (right[1] - left[1]) * (middle[0] - left[0])
