"""Micro-batches in flight: how many a stage keeps at once under a cell's schedule.

An interleaved rank r of p (Narayanan et al., arXiv 2104.04473, section 2.2, in the order of
simulator/schedules/interleaved.py) runs W = (v-1) p + 2 (p-1-r) forwards ahead, then a forward and
a backward in turn. Forwards take its v stages in turn, p micro-batches each; backwards take them in
the opposite order. So what each stage has begun and ended after so many actions is a division with
remainder, and no schedule need be built.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from planner.cell import Cell
from planner.split_moments import most_held

Counts = npt.NDArray[np.intp]


def in_flight(cell: Cell) -> tuple[int, ...]:
    """Micro-batches that each virtual stage keeps when its rank keeps most, for the last time (for
    the first, where the backward is split: those before their I, of which all is kept)."""
    m, p = cell.num_microbatches, cell.pp
    if cell.schedule == "none":
        return (1,)
    if cell.schedule == "gpipe":
        return (m,) * p
    if cell.schedule == "1f1b":
        return tuple(min(m, p - s) for s in range(p))
    if cell.splits_backward:
        held = most_held(cell.schedule, p, m, cell.vpp)
        found = [0] * cell.num_stages
        for rank in range(p):
            for turn, stage in enumerate(cell.stages_of(rank)):
                found[stage] = int(held[turn, rank])
        return tuple(found)
    return _kept_at_peak(p, m, cell.vpp)


@functools.cache
def _kept_at_peak(num_ranks: int, num_microbatches: int, stages_per_rank: int) -> tuple[int, ...]:
    """Per virtual stage of an interleaved schedule, the last time that a rank's sum is highest:
    after its last forward, with the backwards still to come, of its first stage last."""
    p, v = num_ranks, stages_per_rank
    ahead = (v - 1) * p + 2 * (p - 1 - np.arange(p)) + 1
    left = np.minimum(ahead, num_microbatches * v)
    return tuple(_turns(left, p, v).T.ravel().tolist())


def _turns(count: Counts, num_ranks: int, stages_per_rank: int) -> Counts:
    """[len(count), v]: of so many actions how many fall on each stage, `num_ranks` at a time."""
    rounds, rest = np.divmod(count, num_ranks * stages_per_rank)
    offset = np.arange(stages_per_rank) * num_ranks
    return rounds[:, None] * num_ranks + np.clip(rest[:, None] - offset, 0, num_ranks)
