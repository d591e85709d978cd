"""What a rank keeps at every moment of a schedule that splits the backward, each kind once.

A forward adds a micro-batch to its stage; `I` leaves of it what the weights' gradients still need,
`W` takes that too; a full `B` is both (Qi et al., arXiv 2401.10241, section 2.3 and equation 7; the
same count as schedules/in_flight.py). Ranks run their actions in order whatever these take,
so that no timeline is needed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.schedules.action import ActionKind
from simulator.schedules.schedule import Schedule, build_schedule

Counts = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitMoments:
    """Moments at which a rank of v stages may need most memory: one action runs at each.

    whole     [moments, v] micro-batches of which a stage keeps all, that of the action included
    half      [moments, v] micro-batches of which it keeps what their W needs
    turn      [moments] which of the rank's stages runs
    backward  [moments] True for B and I
    weights   [moments] True for W
    first     [moments] True for a stage's first B or I, with which its gradients come
    begun     [moments] stages whose gradients are there
    done      [moments, v] micro-batches that each stage has ended
    """

    whole: Counts
    half: Counts
    turn: Counts
    backward: Counts
    weights: Counts
    first: Counts
    begun: Counts
    done: Counts


@functools.cache
def split_moments(
    name: str, num_ranks: int, num_microbatches: int, stages_per_rank: int, rank: int
) -> SplitMoments:
    """The moments of a rank of the schedule `name`; of equal ones that with most done."""
    schedule = build_schedule(
        name,
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        stages_per_rank=stages_per_rank,
    )
    rows = _walk(schedule, rank)
    v = stages_per_rank
    # What is done only grows, and where it counts the latest of equal moments counts most.
    _, last = np.unique(rows[::-1, : 2 * v + 5], axis=0, return_index=True)
    rows = rows[len(rows) - 1 - np.sort(last)[::-1]]
    return SplitMoments(
        whole=rows[:, :v],
        half=rows[:, v : 2 * v],
        turn=rows[:, 2 * v],
        backward=rows[:, 2 * v + 1],
        weights=rows[:, 2 * v + 2],
        first=rows[:, 2 * v + 3],
        begun=rows[:, 2 * v + 4],
        done=rows[:, 2 * v + 5 :],
    )


def _walk(schedule: Schedule, rank: int) -> Counts:
    """One row per action: whole, half, turn, backward, weights, first, begun, done."""
    turns = {stage: turn for turn, stage in enumerate(schedule.stages_of(rank))}
    v = len(turns)
    whole, half, done = [0] * v, [0] * v, [0] * v
    begun: set[int] = set()
    rows = []
    for action in schedule.ranks[rank]:
        turn, kind = turns[action.stage], action.kind
        forward = kind is ActionKind.FORWARD
        weights = kind is ActionKind.BACKWARD_WEIGHT
        first = not (forward or weights) and turn not in begun
        whole[turn] += forward
        backward = not (forward or weights)
        rows.append([*whole, *half, turn, backward, weights, first, len(begun), *done])
        if not forward:
            begun.add(turn)
        if kind is ActionKind.BACKWARD_INPUT:
            whole[turn], half[turn] = whole[turn] - 1, half[turn] + 1
        elif kind is ActionKind.BACKWARD:
            whole[turn], done[turn] = whole[turn] - 1, done[turn] + 1
        elif weights:
            half[turn], done[turn] = half[turn] - 1, done[turn] + 1
    return np.asarray(rows, dtype=np.intp)
