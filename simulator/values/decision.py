"""Detection of plan files edited by hand.

A plan file contains a decision and its prediction. After an edit the prediction no longer belongs
to the plan. So the provenance of the file repeats the decision, and readers raise if they differ.
"""

from __future__ import annotations

from collections.abc import Mapping

from profiles.document import content_hash, encode
from profiles.errors import DocumentError
from simulator.values.plan import Plan

_PLAN = (
    "tp",
    "pp",
    "dp",
    "vpp",
    "zero_stage",
    "optimizer_offload",
    "sequence_parallel",
    "micro_batch",
    "schedule",
)
_WORKLOAD = ("global_batch", "sequence_length", "precision", "optimizer")
_FLAGS = {
    "zero_stage": "--zero",
    "expert_parallel": "--ep",
    "seq_len": "--seq",
    "sequence_length": "--seq",
    "num_devices": "--on",
}


def plan_decision(plan: Plan) -> dict[str, str]:
    """The decisions in a plan, by key of the plan file; hashes of stages and pipelines."""
    written = encode(plan)
    decision = {f"plan.{name}": str(written[name]) for name in _PLAN}
    for name in _WORKLOAD:
        decision[f"plan.workload.{name}"] = str(getattr(plan.workload, name))
    if plan.pipelines is not None:
        decision["plan.pipelines"] = content_hash(plan.pipelines)
    return decision | {"plan.stages": content_hash(plan.stages)}


def check_decision(where: str, decided: object, now: Mapping[str, str]) -> None:
    """Raises DocumentError with the file and the changed key.

    decided  the decision recorded in the file; earlier releases recorded none
    """
    if not isinstance(decided, Mapping):
        return
    for place, value in now.items():
        before = decided.get(place)
        if before is None or before == value:
            continue
        name = place.rpartition(".")[2]
        if name in ("stages", "pipelines"):
            raise DocumentError(
                f"{where}: {place} was changed after the plan was made, so its prediction is of "
                "another plan; plan again with the flags of your change"
            )
        flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
        raise DocumentError(
            f"{where}: {place} is {value}, the plan was made with {before}, so its prediction does "
            f"not hold; plan again with {flag}"
        )
