"""Micro-batches in flight: how many micro-batches' activations each pipeline rank keeps at once."""

from __future__ import annotations

import functools

from simulator.schedules.action import ActionKind
from simulator.schedules.schedule import build_schedule, schedule_kind

# Schedules are periodic after the warm-up: the maximum no longer grows beyond this many
# micro-batches per rank (tests/simulator/test_in_flight.py).
_ENOUGH = 4


@functools.cache
def in_flight(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    stages_per_rank: int = 1,
    *,
    until_input: bool = False,
) -> tuple[tuple[int, ...], ...]:
    """Per rank: the micro-batches of each of its stages when the rank keeps the most.

    until_input  count a micro-batch until its I, when its activations are complete; default: its W

    Uses the closed form of the schedule's kind if it has one. Otherwise the actions are counted: a
    forward adds a micro-batch, its backward (B, I or W) removes it.
    """
    kind = schedule_kind(name)
    if kind.held is not None and not (until_input and kind.splits_backward):
        return kind.held(num_ranks, num_microbatches, stages_per_rank)
    schedule = build_schedule(
        name,
        num_ranks=num_ranks,
        num_microbatches=min(num_microbatches, _ENOUGH * num_ranks),
        stages_per_rank=stages_per_rank,
    )
    end = ActionKind.BACKWARD_INPUT if until_input else ActionKind.BACKWARD_WEIGHT
    peaks = []
    for rank, row in enumerate(schedule.ranks):
        turns = {stage: turn for turn, stage in enumerate(schedule.stages_of(rank))}
        held = most = (0,) * len(turns)
        for action in row:
            step = (action.kind is ActionKind.FORWARD) - (action.kind in (ActionKind.BACKWARD, end))
            turn = turns[action.stage]
            held = (*held[:turn], held[turn] + step, *held[turn + 1 :])
            most = max(most, held, key=sum)
        peaks.append(most)
    return tuple(peaks)


@functools.cache
def most_in_flight(
    name: str, num_ranks: int, num_microbatches: int, stages_per_rank: int = 1
) -> tuple[float, ...]:
    """Per rank: the most micro-batches kept at once, counted once per virtual stage.

    >>> most_in_flight("1f1b", 4, 8), most_in_flight("interleaved", 2, 8, 2)
    ((4.0, 3.0, 2.0, 1.0), (5.0, 3.0))
    """
    if num_ranks == 1:
        return (1.0,)
    held = in_flight(name, num_ranks, num_microbatches, max(1, stages_per_rank))
    return tuple(float(sum(stages)) for stages in held)
