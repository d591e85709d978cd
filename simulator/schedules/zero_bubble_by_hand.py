"""ZB-H1 and ZB-H2: 1F1B with a split backward, where W fills the idle end.

Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 2 and figure 3. With T_F, T_B
and T_W for F, I and W on each of p ranks (table 2):

    ZB-H1   bubble (p - 1) (T_F + T_B - T_W)     at most p micro-batches' activations
    ZB-H2   bubble (p - 1) (T_F + T_B - 2 T_W)   at most 2 p - 1

This is the bubble of the longest rank, between its first and last action. Ranks start one after
another, and end so too, as no rank waits for the others before its optimizer step.
"""

from __future__ import annotations

from simulator.schedules.action import Action, backward_input, backward_weight, forward
from simulator.schedules.interleaved import microbatches_per_round, turns
from simulator.schedules.schedule import (
    Placement,
    Schedule,
    ScheduleKind,
    ScheduleOptions,
    register,
)

Turns = list[tuple[int, int]]


@register(
    ScheduleKind(name="zb-h1", splits_backward=True, held=lambda p, m, v: ((min(m, p),),) * p)
)
def zb_h1(num_ranks: int, num_microbatches: int, options: ScheduleOptions) -> Schedule:
    """1F1B with each W of rank r delayed by r turns, in the memory of 1F1B.

    With several stages per rank, torch's ScheduleInterleavedZeroBubble.
    """
    local = options.stages_per_rank
    per_round = num_microbatches
    if local > 1:
        per_round = microbatches_per_round("zb-h1", num_ranks, num_microbatches)
    total = local * num_microbatches
    rows = []
    for rank in range(num_ranks):
        forwards = turns(rank, num_ranks, local, per_round, total, reverse=False)
        backwards = turns(rank, num_ranks, local, per_round, total, reverse=True)
        warm_up = min(total, (local - 1) * per_round + num_ranks - 1 - rank)
        rows.append(_row(forwards, backwards, warm_up=warm_up, late=rank))
    return _schedule("zb-h1", num_ranks, num_microbatches, local, rows)


@register(
    ScheduleKind(
        name="zb-h2", splits_backward=True, held=lambda p, m, v: ((min(m, 2 * p - 1),),) * p
    )
)
def zb_h2(num_ranks: int, num_microbatches: int, options: ScheduleOptions) -> Schedule:
    """ZB-H1 with twice the warm-up forwards and twice the delay of W.

    No bubble if F, I and W are equal and there are at least 2 p - 1 micro-batches.
    """
    options.require_stages_per_rank("zb-h2", 1, hint="use zb-h1 or zbv")
    rows = []
    for rank in range(num_ranks):
        order = [(rank, mb) for mb in range(num_microbatches)]
        warm_up = min(num_microbatches, 2 * (num_ranks - 1 - rank))
        rows.append(_row(order, order, warm_up=warm_up, late=2 * rank))
    return _schedule("zb-h2", num_ranks, num_microbatches, 1, rows)


def _row(forwards: Turns, backwards: Turns, *, warm_up: int, late: int) -> tuple[Action, ...]:
    """`warm_up` forwards, then F, I and the W delayed by `late` turns, until all are done."""
    row = [forward(*turn) for turn in forwards[:warm_up]]
    for i, turn in enumerate(backwards):
        if warm_up + i < len(forwards):
            row.append(forward(*forwards[warm_up + i]))
        row.append(backward_input(*turn))
        if i >= late:
            row.append(backward_weight(*backwards[i - late]))
    row += [backward_weight(*turn) for turn in backwards[max(0, len(backwards) - late) :]]
    return tuple(row)


def _schedule(
    name: str, num_ranks: int, num_microbatches: int, local: int, rows: list[tuple[Action, ...]]
) -> Schedule:
    return Schedule(
        name=name,
        num_microbatches=num_microbatches,
        stage_to_rank=Placement.LOOP.ranks_of(num_ranks, local),
        ranks=tuple(rows),
    )
