"""No pipeline: gradient accumulation on one rank."""

from __future__ import annotations

from profiles.errors import InputError
from simulator.schedules.action import backward, forward
from simulator.schedules.schedule import Rows, ScheduleKind, ScheduleOptions, register


@register(ScheduleKind(name="none", closed_form=True, held=lambda p, m, v: ((1,),) * p))
def no_pipeline(num_ranks: int, num_microbatches: int, options: ScheduleOptions) -> Rows:
    """Forward and backward of one micro-batch after another."""
    if num_ranks != 1:
        raise InputError(f"the schedule 'none' is for one pipeline rank, got {num_ranks}")
    return (tuple(f(0, m) for m in range(num_microbatches) for f in (forward, backward)),)
