"""The inputs of a roofline from a plan file: the model's trace and the cluster."""

from __future__ import annotations

from pathlib import Path

from profiles.document import content_hash
from profiles.errors import ShardwrightError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.tracing.block_order import in_order
from shardwright.analysis.breakdown import critical_rank
from shardwright.reports.roofline import Roofline, roofline
from simulator.values.measurement import Measurement
from simulator.values.plan import Plan
from simulator.values.prediction import Prediction


def find_roofline(
    plan: Plan,
    prediction: Prediction,
    measured: Measurement | None,
    *,
    cluster_file: Path | None = None,
) -> Roofline:
    """The roofline of a plan's critical rank, or why there is none (`missing`).

    cluster_file  the profile or cluster file that the plan was made on, where the cluster's name
                  in the plan does not lead to it

    The model comes from the cache of traces, or is traced again. A model or a cluster that has
    another content hash than the plan's would give another picture, so it is refused.
    """
    from shardwright.requests import python_plan
    from shardwright.requests.local_paths import local_profile

    try:
        named = str(cluster_file) if cluster_file is not None else plan.cluster
        cluster = get_cluster(named, local=local_profile())
        found = content_hash(cluster)
        if found != plan.cluster_hash:
            return Roofline(
                missing=f"the plan was made on another {plan.cluster!r}: its hash is "
                f"{plan.cluster_hash}, that of {named} is {found}"
            )
        return _traced(plan, cluster, prediction, measured, python_plan.target_of(cluster))
    except ShardwrightError as error:
        return Roofline(missing=str(error))


def _traced(
    plan: Plan,
    cluster: Cluster,
    prediction: Prediction,
    measured: Measurement | None,
    target: str,
) -> Roofline:
    from shardwright.requests import python_plan

    traced = python_plan.trace(
        plan.model,
        sequence_length=(
            plan.workload.sequence_length if plan.workload.counted_in == "tokens" else None
        ),
        precision=plan.workload.precision,
        tp_degrees=tuple(sorted({1, plan.degrees.tp})),
        target=target,
    )
    if traced.content_hash != plan.model_hash:
        return Roofline(
            missing=f"the plan was made for another {plan.model!r}: its hash is {plan.model_hash}, "
            f"that of the model of this name is {traced.content_hash}"
        )
    graph = in_order(traced.at(plan.micro_batch, plan.degrees.tp), plan.block_entries)
    return roofline(plan, graph, cluster, measured, rank=critical_rank(prediction))
