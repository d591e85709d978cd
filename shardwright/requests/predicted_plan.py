"""The prediction of a plan, by the same route as `plan` (plan_route.py)."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from planner.layout.layout_answer import LayoutFile
from planner.layout.layout_choice import layout_prediction
from planner.layout.plan_of_layout import plan_prediction
from profiles.document import content_hash
from profiles.errors import MismatchError, ShardwrightError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.loaders import resolve_model
from profiles.model.tracing.traced import TracedModel
from profiles.sourced import Sourced
from profiles.units import format_time
from shardwright.requests.local_paths import local_profile
from shardwright.requests.named_model import import_from_here
from shardwright.requests.opened_plan import OpenedPlan
from shardwright.requests.plan_route import route_of, trace_blocks
from shardwright.requests.python_plan import target_of
from simulator.traced.predict import predict
from simulator.training_run.framework.framework import load_stack
from simulator.values.plan import Plan
from simulator.values.plan_file import PlanFile
from simulator.values.prediction import Prediction

_SAME = 1e-3  # relative; more apart, and the file is of another release


def predict_plan(
    plan: Plan, cluster: Cluster, price: Sourced | None, model: TracedModel | None = None
) -> Prediction:
    """The prediction of a plan of our own executor on a cluster.

    price  US dollars per device-hour, None for no dollars
    model  traced; None for the plan's model, traced if needed

    A plan that is a layout of equal layers is predicted as that layout, any other block by block.

    Raises MismatchError for a plan of another model, for a model that was traced without or with
    the plan's sequence parallelism, and for too few devices; ModelError and TraceError for unknown
    models.
    """
    route = route_of(
        plan.model if model is None else model,
        cluster,
        seq=plan.workload.sequence_length,
        optimizer=plan.workload.optimizer,
    )
    if route.figures is not None:
        made = plan_prediction(plan, route.figures, cluster, price)
        if made is not None:
            return made
    if model is None:
        model = _traced(
            plan.model,
            replace(plan.workload, global_batch=1),
            tp=plan.degrees.tp,
            target=target_of(cluster),
            sequence_parallel=plan.sequence_parallel,
        )
    if plan.degrees.tp > 1 and model.sequence_parallel != plan.sequence_parallel:
        ours, given = ("with", "without") if plan.sequence_parallel else ("without", "with")
        raise MismatchError(
            f"the plan of {plan.model} has tensor parallelism {ours} sequence parallelism, the "
            f"model was traced {given}: trace it with sequence_parallel={plan.sequence_parallel}, "
            "or leave the model out"
        )
    return predict(plan, model, cluster, stack=load_stack(), price=price)


_traced = functools.lru_cache(maxsize=16)(trace_blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedAgain:
    """A plan file with this release's prediction of its plan.

    why_not  why the prediction is still the stored one, "" if it was computed
    changed  message that the step differs from the stored one, "" if it does not
    """

    opened: OpenedPlan
    why_not: str = ""
    changed: str = ""


def predicted_again(opened: OpenedPlan) -> PredictedAgain:
    """The prediction of the chosen plan, computed again at the file's price.

    The stored prediction remains if the model, the cluster or the calibration is not available.
    """
    answer = opened.answer
    try:
        if isinstance(answer, LayoutFile):
            again: PlanFile | LayoutFile = _layout_again(answer)
        else:
            again = _plan_again(answer)
    except ShardwrightError as error:
        return PredictedAgain(opened=opened, why_not=str(error))
    stored_s, now_s = _step_s(answer), _step_s(again)
    same = abs(now_s - stored_s) <= _SAME * stored_s
    changed = (
        ""
        if same
        else f"this release predicts a step of {format_time(now_s)}, the file holds "
        f"{format_time(stored_s)}"
    )
    return PredictedAgain(opened=replace(opened, answer=again), changed=changed)


def _step_s(answer: PlanFile | LayoutFile) -> float:
    """Seconds of the chosen plan's step, 0 if there is none."""
    if isinstance(answer, LayoutFile):
        return answer.chosen.prediction.step_time_s.value if answer.chosen else 0.0
    return answer.prediction.step_time_s.value if answer.prediction else 0.0


def _plan_again(answer: PlanFile) -> PlanFile:
    plan, stored = answer.plan, answer.prediction
    if plan is None or stored is None:
        return answer
    _refuse_calibrated(answer.calibration)
    cluster = get_cluster(plan.cluster, local=local_profile())
    if plan.cluster == "local" and content_hash(cluster) != plan.cluster_hash:
        raise MismatchError("this machine's profile is not the one of the plan; plan again")
    import_from_here(plan.model)
    if resolve_model(plan.model).content_hash != plan.model_hash:
        raise MismatchError(f"{plan.model} has changed since the plan was made; plan again")
    return answer.with_prediction(predict_plan(plan, cluster, stored.price_usd_per_hour))


def _refuse_calibrated(calibration: str) -> None:
    """Raises MismatchError for a prediction with a calibration, which the file does not contain."""
    if calibration:
        raise MismatchError(f"its coefficients were refitted on {calibration}")


def _layout_again(answer: LayoutFile) -> LayoutFile:
    chosen = answer.chosen
    if chosen is None:
        return answer
    _refuse_calibrated(answer.calibration)
    cluster = get_cluster(answer.cluster, local=local_profile())
    made = layout_prediction(chosen.run, cluster, chosen.prediction.price_usd_per_hour)
    return replace(answer, chosen=replace(chosen, prediction=made))
