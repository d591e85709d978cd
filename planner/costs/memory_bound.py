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

from planner.chain.problem import Array


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
    kept = np.asarray([row for row, _ in sorted(ranks)], dtype=float)
    free = np.asarray([room for _, room in sorted(ranks)])
    room = free[:, None] - static_bytes + edge_bytes * kept.sum(axis=1)[:, None]
    times = _least_seconds(hull_bytes, hull_s, kept, most_per_stage, room)
    # Rounding apart, the times are rising already.
    times = np.maximum.accumulate(times, axis=1)
    every = np.repeat(times, [count for _, count in sorted(ranks.items())], axis=0).ravel()
    return float(np.partition(every, number - 1)[number - 1])


def _least_seconds(
    hull_bytes: Array, hull_s: Array, kept: Array, most_per_stage: int, room: Array
) -> Array:
    """[ranks, N] least seconds of 1, 2, ... N blocks of a rank; infinite where they do not fit.

    kept  [ranks, v] rising micro-batches in flight of its stages;  room  [ranks, N]
    """
    counts = np.arange(1, room.shape[1] + 1)
    stages = np.arange(kept.shape[1])
    held = np.minimum(
        np.maximum(counts - stages[:, None] * most_per_stage, 0), most_per_stage
    ).astype(float)
    excess = hull_bytes[-1] * (kept @ held) - room
    seconds = np.tile(counts * hull_s[-1], (len(kept), 1))
    # Cheapest first: of equal stages the price falls with what is in flight, of segments it rises.
    widths, falls = np.diff(hull_bytes), -np.diff(hull_s)
    price = (falls / widths)[None, :, None] / kept[:, None, :]
    width = widths[None, :, None] * kept[:, None, :]
    ranks = np.arange(len(kept))
    for offer in np.argsort(price.reshape(len(kept), -1), axis=1, kind="stable").T:
        segment, stage = np.divmod(offer, kept.shape[1])
        most = width[ranks, segment, stage][:, None] * held[stage]
        freed = np.minimum(np.maximum(excess, 0.0), most)
        seconds += freed * price[ranks, segment, stage][:, None]
        excess -= freed
    impossible = (excess > 1e-9 * np.abs(room)) | (counts > len(stages) * most_per_stage)
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
