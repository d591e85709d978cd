"""Combinations that the executor runs. A test checks the gradients of every one."""

from __future__ import annotations

from simulator.schedules.schedule import schedule_kind, schedule_names
from simulator.values.degrees import Degrees
from simulator.values.plan import Plan


def runnable_schedules() -> tuple[str, ...]:
    """Schedules that the executor runs: one copy of the model, order independent of durations, not
    made for experts that are spread over ranks."""
    kinds = map(schedule_kind, schedule_names())
    return tuple(
        kind.name
        for kind in kinds
        if kind.copies == 1 and not kind.follows_durations and not kind.for_experts
    )


def free_schedules() -> tuple[str, ...]:
    """Schedules in the default search over blocks; others must be requested by the user."""
    return tuple(n for n in runnable_schedules() if not schedule_kind(n).splits_backward)


def why_not_runnable(
    degrees: Degrees,
    *,
    zero_stage: int,
    schedule: str,
    precision: str,
    num_microbatches: int | None = None,
) -> str:
    """Why the executor cannot run the combination, or "".

    Checked by the planner before it proposes a plan and by the executor before it runs one.
    """
    if schedule not in runnable_schedules():
        return f"the executor does not run the schedule {schedule!r}"
    if degrees.pp == 1 and schedule != "none":
        return f"the schedule {schedule!r} needs pp of 2 or more"
    if degrees.pp > 1 and schedule == "none":
        return "pp of 2 or more needs a schedule"
    kind = schedule_kind(schedule)
    if not kind.takes_stages(degrees.vpp):
        return f"the schedule {schedule!r} cannot run with vpp={degrees.vpp}"
    if num_microbatches is not None and kind.why_not(degrees.pp, num_microbatches):
        return kind.why_not(degrees.pp, num_microbatches)
    if zero_stage and degrees.dp == 1:
        return f"zero_stage={zero_stage} shards over dp, which is 1"
    if precision == "fp16":
        return "fp16 needs loss scaling, which the executor does not do; use bf16"
    return ""


def why_not_runnable_plan(plan: Plan, *, compiled: bool = False) -> str:
    """Why the executor cannot run a plan, or "".

    compiled  the units of its stages are compiled (executor/compiled_units.py)
    """
    if plan.pipelines is not None:
        return "the executor runs equal replicas only"
    if compiled and schedule_kind(plan.schedule).splits_backward:
        return (
            f"the schedule {plan.schedule!r} makes gradients of weights apart from those of "
            "inputs, which compiled units make together; run it without --compile, or plan with "
            "--schedule 1f1b"
        )
    return why_not_runnable(
        plan.degrees,
        zero_stage=plan.zero_stage,
        schedule=plan.schedule,
        precision=plan.workload.precision,
        num_microbatches=plan.num_microbatches,
    )
