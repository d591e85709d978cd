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
from simulator.schedules.schedule import Rows, ScheduleKind, ScheduleOptions, register


@register(
    ScheduleKind(name="zb-h1", splits_backward=True, held=lambda p, m, v: ((min(m, p),),) * p)
)
def zb_h1(num_ranks: int, num_microbatches: int, options: ScheduleOptions) -> Rows:
    """1F1B with each W of rank r delayed by r turns, in the memory of 1F1B."""
    return tuple(
        _row(rank, num_microbatches, warm_up=num_ranks - 1 - rank, late=rank)
        for rank in range(num_ranks)
    )


@register(
    ScheduleKind(
        name="zb-h2", splits_backward=True, held=lambda p, m, v: ((min(m, 2 * p - 1),),) * p
    )
)
def zb_h2(num_ranks: int, num_microbatches: int, options: ScheduleOptions) -> Rows:
    """ZB-H1 with twice the warm-up forwards and twice the delay of W.

    No bubble if F, I and W are equal and there are at least 2 p - 1 micro-batches.
    """
    return tuple(
        _row(rank, num_microbatches, warm_up=2 * (num_ranks - 1 - rank), late=2 * rank)
        for rank in range(num_ranks)
    )


def _row(rank: int, num_microbatches: int, *, warm_up: int, late: int) -> tuple[Action, ...]:
    """`warm_up` forwards, then F, I and the W delayed by `late` turns, until all are done."""
    warm_up = min(num_microbatches, warm_up)
    row = [forward(rank, m) for m in range(warm_up)]
    for m in range(num_microbatches):
        if warm_up + m < num_microbatches:
            row.append(forward(rank, warm_up + m))
        row.append(backward_input(rank, m))
        if m >= late:
            row.append(backward_weight(rank, m - late))
    owed = range(max(0, num_microbatches - late), num_microbatches)
    return (*row, *(backward_weight(rank, m) for m in owed))
