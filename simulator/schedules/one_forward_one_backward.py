"""1F1B: alternating forwards and backwards."""

from __future__ import annotations

from simulator.schedules.action import backward, forward
from simulator.schedules.schedule import Rows, ScheduleKind, ScheduleOptions, register


@register(
    ScheduleKind(
        name="1f1b",
        closed_form=True,
        words=("pipedream-flush", "1f1b-i"),
        held=lambda p, m, v: tuple((min(m, p - rank),) for rank in range(p)),
    )
)
def one_forward_one_backward(
    num_ranks: int, num_microbatches: int, options: ScheduleOptions
) -> Rows:
    """After num_ranks - rank forwards, backwards and forwards alternate.

    PipeDream-Flush (Narayanan et al., arXiv 2104.04473, figure 3 bottom); keeps at most
    num_ranks - rank micro-batches.
    """
    rows = []
    for rank in range(num_ranks):
        warm_up = min(num_microbatches, num_ranks - rank)
        row = [forward(rank, m) for m in range(warm_up)]
        for m in range(num_microbatches):
            row.append(backward(rank, m))
            if warm_up + m < num_microbatches:
                row.append(forward(rank, warm_up + m))
        rows.append(tuple(row))
    return tuple(rows)
