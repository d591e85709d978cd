"""ZB-V: zero bubble in the memory of 1F1B, with two stages per rank placed in a V.

Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 6 and figure 8. No bubble if
F, I and W take equally long and there are at least 2 p - 1 micro-batches. Every rank keeps at most
2 p half micro-batches (a half is a micro-batch on one of the rank's two stages).
"""

from __future__ import annotations

from simulator.schedules.action import Action, ActionKind
from simulator.schedules.schedule import Placement, Rows, ScheduleKind, ScheduleOptions, register

_F, _I, _W = ActionKind.FORWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT


@register(
    ScheduleKind(
        name="zbv",
        placement=Placement.V,
        stages_per_rank=2,
        splits_backward=True,
        words=("zb-v",),
        held=lambda p, m, v: tuple((min(m, 2 * p - 1 - r), min(m, r + 1)) for r in range(p)),
    )
)
def zbv(num_ranks: int, num_microbatches: int, options: ScheduleOptions) -> Rows:
    """The order of figure 8, the same as torch's ScheduleZBVZeroBubble."""
    # The pattern is defined for at least 2 p - 1 micro-batches; surplus ones are removed below.
    micro = max(num_microbatches, 2 * num_ranks - 1)
    rows = (_row(rank, num_ranks, micro) for rank in range(num_ranks))
    return tuple(
        tuple(action for action in row if action.microbatch < num_microbatches) for row in rows
    )


def _row(rank: int, num_ranks: int, micro: int) -> list[Action]:
    """Actions of a rank, by the phases of section 6: warm-up, steady phase and end."""
    down, up = rank, 2 * num_ranks - 1 - rank  # its two stages
    below = num_ranks - 1 - rank
    done: dict[tuple[int, ActionKind], int] = {}
    row: list[Action] = []

    def run(stage: int, *kinds: ActionKind) -> None:
        for kind in kinds:
            number = done.get((stage, kind), 0)
            row.append(Action(stage, kind, number))
            done[stage, kind] = number + 1

    for _ in range(2 * below + 1):
        run(down, _F)
    for _ in range(rank):
        run(up, _F)
        run(down, _F)
    for _ in range(below + 1):
        run(up, _F, _I, _W)
    for _ in range(micro - num_ranks):
        if done[down, _F] < micro:
            run(down, _F)
        run(down, _I, _W)
        run(up, _F, _I, _W)
    for _ in range(rank):
        run(down, _I)
        run(up, _I)
    for _ in range(below + 1):
        run(down, _I, _W)
    for stage in (up, down):
        while done.get((stage, _W), 0) < micro:
            run(stage, _W)
    return row
