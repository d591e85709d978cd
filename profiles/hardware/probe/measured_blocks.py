"""Measured blocks in the description of a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from profiles.errors import InputError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import (
    ActionOverhead,
    BlockPoint,
    ReferencePoint,
    StepOverhead,
)


def with_blocks(
    cluster: Cluster,
    points: Sequence[BlockPoint],
    *,
    references: Sequence[ReferencePoint] = (),
    action: ActionOverhead | None = None,
    step: StepOverhead | None = None,
) -> Cluster:
    """The cluster with block points on its device; a point replaces an earlier one of its kind.

    references, action, step  as in Measurements; None keeps the device's

    Raises InputError if the cluster has several kinds of device or an unmeasured one.
    """
    names = sorted({group.device.name for group in cluster.groups})
    before = cluster.groups[0].device.measurements
    if len(names) > 1 or before is None:
        raise InputError(
            "block times need a profiled machine with one kind of device: cluster "
            f"{cluster.name} has {', '.join(names)}; run `shardwright profile` on it first"
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
