"""Which combinations the executor runs: every one of them has its gradients checked by a test."""

from __future__ import annotations

from simulator.plan import Plan
from simulator.schedule_shape import SHAPES, SPLIT_SCHEDULES

RUNNABLE_SCHEDULES = ("none", *SHAPES)
"""Schedules that the executor runs."""

FREE_SCHEDULES = tuple(name for name in RUNNABLE_SCHEDULES if name not in SPLIT_SCHEDULES)
"""Schedules that a search chooses from by itself; others are planned where a user names them."""


def why_not_runnable(
    *,
    pp: int,
    dp: int,
    tp: int,
    vpp: int,
    zero_stage: int,
    schedule: str,
    precision: str,
    num_microbatches: int | None = None,
) -> str:
    """Why the executor refuses the combination, or "".

    The planner asks before it proposes a plan, the executor before it runs one.
    """
    if schedule not in RUNNABLE_SCHEDULES:
        return f"the executor does not run the schedule {schedule!r}"
    if pp == 1 and schedule != "none":
        return f"the schedule {schedule!r} needs pp of 2 or more"
    if pp > 1 and schedule == "none":
        return "pp of 2 or more needs a schedule"
    wanted = SHAPES[schedule].stages_per_rank if schedule in SHAPES else 1
    if (vpp < 2) if wanted == 0 else (vpp != wanted):
        return f"vpp={vpp} does not go with the schedule {schedule!r}"
    least = SHAPES[schedule].microbatches_per_rank * pp if schedule in SHAPES else 0
    if num_microbatches is not None and num_microbatches < least:
        return (
            f"{schedule} needs {least} micro-batches or more on pp={pp}, there are "
            f"{num_microbatches}"
        )
    if zero_stage and dp == 1:
        return f"zero_stage={zero_stage} shards over dp, which is 1"
    if precision == "fp16":
        return "fp16 needs loss scaling, which the executor does not do; use bf16"
    return ""


def why_not_runnable_plan(plan: Plan) -> str:
    """Why the executor refuses a whole plan, or ""."""
    return why_not_runnable(
        pp=plan.pp,
        dp=plan.dp,
        tp=plan.tp,
        vpp=plan.vpp,
        zero_stage=plan.zero_stage,
        schedule=plan.schedule,
        precision=plan.workload.precision,
        num_microbatches=plan.num_microbatches,
    )
