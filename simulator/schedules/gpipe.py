"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from simulator.schedules.action import backward, forward
from simulator.schedules.schedule import Rows, ScheduleKind, ScheduleOptions, register


@register(
    ScheduleKind(
        name="gpipe", closed_form=True, words=("afab",), held=lambda p, m, v: ((m,) * v,) * p
    )
)
def gpipe(num_ranks: int, num_microbatches: int, options: ScheduleOptions) -> Rows:
    """GPipe (Huang et al., arXiv 1811.06965, figure 2c); keeps every micro-batch."""
    micro_batches = range(num_microbatches)
    return tuple(
        tuple([forward(r, m) for m in micro_batches] + [backward(r, m) for m in micro_batches])
        for r in range(num_ranks)
    )
