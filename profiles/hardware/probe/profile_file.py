"""The profile file: a cluster that was measured, and the blocks that are measured later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from profiles.document import read_document, write_document
from profiles.errors import InputError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import (
    ActionOverhead,
    BlockPoint,
    ReferencePoint,
    StepOverhead,
)

CLUSTER_SCHEMA = "shardwright/cluster@1"


def read_profile(path: str | Path) -> Cluster:
    """The measured cluster in `path`; raises DocumentError for anything else."""
    return read_document(path, Cluster, schema=CLUSTER_SCHEMA)


def write_profile(
    path: str | Path, cluster: Cluster, *, provenance: Mapping[str, Any] | None = None
) -> None:
    """Write the cluster so that a reader sees the old profile or the whole new one."""
    write_document(path, cluster, schema=CLUSTER_SCHEMA, provenance=provenance)


def with_blocks(
    cluster: Cluster,
    points: Sequence[BlockPoint],
    *,
    references: Sequence[ReferencePoint] = (),
    action: ActionOverhead | None = None,
    step: StepOverhead | None = None,
) -> Cluster:
    """The cluster with block points on its device; a point replaces an earlier one of its kind.

    references, action, step  as in Measurements; none keeps what the device has

    Raises InputError where the cluster has several kinds of device, or none was measured on it.
    """
    names = sorted({group.device.name for group in cluster.groups})
    before = cluster.groups[0].device.measurements
    if len(names) > 1 or before is None:
        raise InputError(
            f"blocks are measured on a machine of one kind of device whose ops were measured: "
            f"cluster {cluster.name} has {', '.join(names)}; run `shardwright profile` on it first"
        )
    merged = {point.kind: point for point in (*before.blocks, *points)}
    measurements = replace(
        before,
        blocks=tuple(merged[kind] for kind in sorted(merged)),
        references=tuple(references) or before.references,
        action=action or before.action,
        step=step or before.step,
    )
    groups = tuple(
        replace(group, device=replace(group.device, measurements=measurements))
        for group in cluster.groups
    )
    return replace(cluster, groups=groups)
