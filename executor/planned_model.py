"""The plan in a file and its model, or the reason why they cannot be run. Does not import torch."""

from __future__ import annotations

from pathlib import Path

from profiles.errors import DocumentError, MismatchError
from profiles.model.loaders import GIVEN, ModelSpec, resolve_model
from simulator.values.plan import Plan
from simulator.values.plan_file import PlanFile
from simulator.values.runnable import why_not_runnable_plan


def runnable(path: str | Path, answer: PlanFile, *, compiled: bool = False) -> Plan:
    """The plan; raises DocumentError if the file has none, MismatchError if it cannot be run."""
    if answer.plan is None:
        raise DocumentError(f"{path} has no plan: nothing fits ({answer.status})")
    if reason := why_not_runnable_plan(answer.plan, compiled=compiled):
        raise MismatchError(f"{path}: {reason}")
    return answer.plan


def planned_model(path: str | Path, plan: Plan, model: str = "") -> ModelSpec:
    """The plan's model, or the model named by the user instead.

    Raises MismatchError if it differs from the planned model, ModelError for an unknown name.
    """
    given = plan.model.endswith(GIVEN)
    if given and not model:
        raise MismatchError(
            f"{path} is for {plan.model}: the ranks of a run cannot import that; name a factory "
            "that returns the same module (--model package.module:factory)"
        )
    spec = resolve_model(model or plan.model)
    # A module without a name is identified by its blocks only, which every stage checks.
    if not given and spec.content_hash != plan.model_hash:
        raise MismatchError(
            f"{path} was made for another model: its hash is {plan.model_hash}, that of "
            f"{spec.source} is {spec.content_hash}; plan again, or pass the right --model"
        )
    return spec
