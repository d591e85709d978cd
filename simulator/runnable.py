"""Which combinations the executor runs: every one of them has its gradients checked by a test."""

from __future__ import annotations

from simulator.plan import Plan
from simulator.schedule_shape import SHAPES

RUNNABLE_SCHEDULES = ("none", "gpipe", "1f1b", "interleaved")
"""Schedules that the executor runs. It does not split the backward."""

PLANNED_SCHEDULES = tuple(name for name in SHAPES if name not in RUNNABLE_SCHEDULES)
"""Schedules that are planned and predicted where a user names them, and not run."""


def why_not_runnable(
    *, pp: int, dp: int, tp: int, vpp: int, zero_stage: int, schedule: str, precision: str
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
    if (vpp > 1) != (schedule == "interleaved"):
        return f"vpp={vpp} does not go with the schedule {schedule!r}"
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
    )
