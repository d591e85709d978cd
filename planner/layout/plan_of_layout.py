"""`plan_of_layouts`: an answer with layouts for our own executor, as a plan file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.costs.priced_model import Traced
from planner.layout.executable import executable_plan, run_of_plan
from planner.layout.layout_answer import LayoutChoice, LayoutFile
from planner.layout.layout_choice import layout_prediction
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.figures.transformer import Transformer
from profiles.sourced import Sourced
from simulator.training_run.explain.run_prediction import with_timeline
from simulator.values.plan import Plan
from simulator.values.plan_file import Alternative, Infeasibility, PlanFile
from simulator.values.prediction import Prediction
from simulator.values.workload import Workload


def plan_of_layouts(
    answer: LayoutFile, traced: Mapping[bool, Traced], cluster: Cluster, workload: Workload
) -> PlanFile:
    """The plan file of an answer for the framework `torch`, with layouts as stages of blocks.

    traced  the model, traced with sequence parallelism (True) or without; empty only if the answer
            has no layout. Alternatives that need the other one are left out.

    Raises the errors of executable_plan.
    """
    best = answer.chosen
    rules = _traced_for(best, traced) if best else None
    plan = executable_plan(best.run, rules, cluster, workload) if best and rules else None
    prediction = with_timeline(best.prediction, best.run, plan) if best and plan else None
    made = PlanFile(
        status=answer.status,
        bound=answer.bound,
        gap=answer.gap,
        search_time_s=answer.search_time_s,
        cells_considered=answer.considered,
        cells_pruned=answer.too_big + answer.pruned,
        cells_refined=answer.refined,
        solver="layouts",
        plan=plan,
        alternatives=tuple(
            _alternative(other, rules, cluster, workload)
            for other in answer.alternatives
            if (rules := _traced_for(other, traced)) is not None
        ),
        infeasibility=_infeasibility(answer.infeasibility) if answer.infeasibility else None,
        assumptions=answer.assumptions,
        machine=cluster.machine,
        calibration=answer.calibration,
    )
    return made if prediction is None else made.with_prediction(prediction)


def plan_prediction(
    plan: Plan, model: Transformer, cluster: Cluster, price: Sourced | None
) -> Prediction | None:
    """The prediction of a plan as a layout of our own executor, equal to that of an answer; None if
    it is not a layout (`run_of_plan`).

    model  its figures
    price  US dollars per device-hour, None for no dollars

    Raises InputError for a cluster of several device types.
    """
    run = run_of_plan(plan, model, cluster)
    if run is None:
        return None
    return with_timeline(layout_prediction(run, cluster, price), run, plan)


def _traced_for(choice: LayoutChoice, traced: Mapping[bool, Traced]) -> Traced | None:
    """The traced model with the rules of a layout; any if it has no tensor parallelism."""
    if choice.run.degrees.tp == 1:
        return next(iter(traced.values()), None)
    return traced.get(choice.run.sequence_parallel)


def _alternative(
    choice: LayoutChoice, traced: Traced, cluster: Cluster, workload: Workload
) -> Alternative:
    plan = executable_plan(choice.run, traced, cluster, workload)
    return Alternative.of(plan, choice.prediction, choice.why_not_first)


def _infeasibility(why: Infeasibility) -> Infeasibility:
    """The same infeasibility for a plan, whose stages are in the order of the ranks."""
    relaxations = tuple(replace(each, layout=None) for each in why.relaxations)
    return replace(why, stage=why.rank, rank=None, host=None, relaxations=relaxations)
