"""Micro-batches in flight: how many a stage keeps at once under a cell's schedule.

An interleaved rank r of p (Narayanan et al., arXiv 2104.04473, section 2.2, in the order of
simulator/schedules/interleaved.py) runs W = (v-1) p + 2 (p-1-r) forwards ahead, then a forward and
a backward in turn. Forwards take its v stages in turn, p micro-batches each; backwards take them in
the opposite order. So what each stage has begun and ended after so many actions is a division with
remainder, and no schedule need be built.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.cell import Cell
from simulator.in_flight import in_flight as held_by_ranks

Counts = npt.NDArray[np.intp]
Held = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Moments of an interleaved rank before one of its backwards.

    held    [moments, v] micro-batches that each of its stages keeps, the one that comes included
    stage   [moments] which of its stages runs backward
    begun   [moments] stages that have run backward before
    done    [moments, v] micro-batches that each stage has ended
    """

    held: Counts
    stage: Counts
    begun: Counts
    done: Counts


def in_flight(cell: Cell) -> tuple[int, ...]:
    """Micro-batches that each virtual stage keeps when its rank keeps most, for the last time (for
    the first, where the backward is split: those before their I, of which all is kept)."""
    held = held_by_ranks(cell.schedule, cell.pp, cell.num_microbatches, cell.vpp, until_input=True)
    found = [0] * cell.num_stages
    for rank, stages in enumerate(held):
        for count, stage in zip(stages, cell.stages_of(rank), strict=True):
            found[stage] = count
    return tuple(found)


@functools.cache
def moments(num_ranks: int, num_microbatches: int, stages_per_rank: int, rank: int) -> Moments:
    """The moments at which an interleaved rank may need most memory, each kind once.

    Between two changes of the stages that run, what is held changes by the same step each time, so
    that the ends of such a stretch are enough; between the first round of all stages and the last
    before the forwards end it repeats itself.
    """
    p, v = num_ranks, stages_per_rank
    total = num_microbatches * v
    ahead = min((v - 1) * p + 2 * (p - 1 - rank), total)
    before = np.arange(total)
    begun = np.minimum(ahead + before + 1, total)
    at_end = (before % p <= 1) | (before % p == p - 1) | (begun % p <= 1) | (begun == total)
    settled = (before >= p * v) & (before < total - ahead - 1 - p * v)
    before = before[at_end & ~settled]
    done = _turns(before, p, v)[:, ::-1]
    held = _turns(np.minimum(ahead + before + 1, total), p, v) - done
    stage = v - 1 - before // p % v
    first = np.minimum(v, -(-before // p))
    rows = np.column_stack([held, stage, first, done])
    # What is done only grows, and where it counts the latest of equal moments counts most.
    _, last = np.unique(rows[::-1, : v + 2], axis=0, return_index=True)
    rows = rows[len(rows) - 1 - np.sort(last)[::-1]]
    rows = rows[_undominated(rows, v)]
    return Moments(held=rows[:, :v], stage=rows[:, v], begun=rows[:, v + 1], done=rows[:, v + 2 :])


def _undominated(rows: Counts, stages_per_rank: int) -> Counts:
    """Indices of the moments that no other exceeds in all that counts, the same stage running."""
    figures = np.delete(rows, stages_per_rank, axis=1)
    stage = rows[:, stages_per_rank]
    over = (figures[None] >= figures[:, None]).all(axis=2) & (stage[None] == stage[:, None])
    over &= (figures[None] > figures[:, None]).any(axis=2)
    return np.flatnonzero(~over.any(axis=1))


def _turns(count: Counts, num_ranks: int, stages_per_rank: int) -> Counts:
    """[len(count), v]: of so many actions how many fall on each stage, `num_ranks` at a time."""
    rounds, rest = np.divmod(count, num_ranks * stages_per_rank)
    offset = np.arange(stages_per_rank) * num_ranks
    return rounds[:, None] * num_ranks + np.clip(rest[:, None] - offset, 0, num_ranks)


@functools.cache
def average_held(num_ranks: int, num_microbatches: int, stages_per_rank: int, rank: int) -> Held:
    """[v] micro-batches that each stage of an interleaved rank keeps on average before its
    backwards, over a round of all stages in which all have run backward before; empty where the
    step is too short for one."""
    p, v = num_ranks, stages_per_rank
    total = num_microbatches * v
    ahead = (v - 1) * p + 2 * (p - 1 - rank)
    first = (v - 1) * p + 1
    before = np.arange(first, first + p * v)
    if ahead + first + p * v > total:
        return np.zeros(0)
    held = _turns(ahead + before + 1, p, v) - _turns(before, p, v)[:, ::-1]
    return np.asarray(held.mean(axis=0))
