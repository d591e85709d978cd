"""Micro-batches in flight: how many a stage keeps at once under a cell's schedule."""

from __future__ import annotations

import functools
from collections import Counter

from planner.cell import Cell
from simulator.schedule import ActionKind, build_schedule

_SETTLED_ROUNDS = (
    4  # of num_ranks micro-batches, after which an interleaved schedule repeats itself
)


def in_flight(cell: Cell) -> tuple[int, ...]:
    """Micro-batches that each virtual stage keeps when its rank keeps most, for the last time."""
    m, p = cell.num_microbatches, cell.pp
    if cell.schedule == "none":
        return (1,)
    if cell.schedule == "gpipe":
        return (m,) * p
    if cell.schedule == "1f1b":
        return tuple(min(m, p - s) for s in range(p))
    return _kept_at_peak(p, min(m, _SETTLED_ROUNDS * p), cell.vpp)


@functools.cache
def _kept_at_peak(num_ranks: int, num_microbatches: int, stages_per_rank: int) -> tuple[int, ...]:
    """Per virtual stage of an interleaved schedule, the last time that a rank's sum is highest."""
    schedule = build_schedule(
        "interleaved",
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        stages_per_rank=stages_per_rank,
    )
    found = [0] * schedule.num_stages
    for row in schedule.ranks:
        held: Counter[int] = Counter()
        most, peak = 0, dict(held)
        for action in row:
            if action.kind is ActionKind.FORWARD:
                held[action.stage] += 1
                if held.total() >= most:
                    most, peak = held.total(), dict(held)
            else:
                held[action.stage] -= 1
        for stage, count in peak.items():
            found[stage] = count
    return tuple(found)
