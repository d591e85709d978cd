"""What a plan file decided, so that a file that was edited by hand is known from its writer's.

A plan file holds a decision and its prediction. After an edit the prediction is of another plan;
the file says in its provenance what was decided, and readers refuse it where the two differ.
"""

from __future__ import annotations

from collections.abc import Mapping

from profiles.document import content_hash, encode
from profiles.errors import DocumentError
from simulator.values.plan import Plan

_PLAN = ("tp", "pp", "dp", "vpp", "zero_stage", "micro_batch", "schedule")
_WORKLOAD = ("global_batch", "sequence_length", "precision", "optimizer")
_FLAGS = {
    "zero_stage": "--zero",
    "expert_parallel": "--ep",
    "seq_len": "--seq",
    "sequence_length": "--seq",
    "num_devices": "--on",
}


def plan_decision(plan: Plan) -> dict[str, str]:
    """What a plan decides, by its place in the file."""
    written = encode(plan)
    found = {f"plan.{name}": str(written[name]) for name in _PLAN}
    for name in _WORKLOAD:
        found[f"plan.workload.{name}"] = str(getattr(plan.workload, name))
    if plan.pipelines is not None:
        found["plan.pipelines"] = content_hash(plan.pipelines)
    return found | {"plan.stages": content_hash(plan.stages)}


def check_decision(where: str, decided: object, now: Mapping[str, str]) -> None:
    """Raises DocumentError naming the file and the key that was changed.

    decided  what the file says was decided; files of earlier releases say nothing
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
                "another plan; plan again, with flags that fix what you want"
            )
        flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
        raise DocumentError(
            f"{where}: {place} is {value}, the plan was made with {before}, so its prediction does "
            f"not hold; plan again with {flag}"
        )
