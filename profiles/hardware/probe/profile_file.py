"""The profile file: a cluster that was measured, and the blocks that are measured later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from profiles.document import read_document, write_document
from profiles.errors import InputError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import BlockPoint, Device, Measurements, ReferencePoint

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
    device: str = "",
    source: str = "",
    date: str = "",
) -> Cluster:
    """The cluster with block points on its devices; a point replaces an earlier one of its kind.

    references    how fast the machine was meanwhile; none keeps those that the device has
    device        name of the device that was measured, "" where the cluster has one kind only
    source, date  of the blocks; needed only where the device has no measurements yet
    Raises InputError where the cluster has several kinds of device and none is named, none of that
    name, or a device without measurements and no source.
    """
    names = sorted({group.device.name for group in cluster.groups})
    if not device and len(names) > 1:
        raise InputError(f"say on which device the blocks were measured: {', '.join(names)}")
    name = device or names[0]
    if name not in names:
        raise InputError(
            f"the blocks were measured on {name}, cluster {cluster.name} has {', '.join(names)}"
        )
    groups = tuple(
        replace(group, device=_with_points(group.device, points, references, source, date))
        if group.device.name == name
        else group
        for group in cluster.groups
    )
    return replace(cluster, groups=groups)


def _with_points(
    device: Device,
    points: Sequence[BlockPoint],
    references: Sequence[ReferencePoint],
    source: str,
    date: str,
) -> Device:
    before = device.measurements
    if before is None:
        if not source or not date:
            raise InputError(
                f"device {device.name} has no measurements yet: say the source and date of the "
                "blocks"
            )
        before = Measurements(source=source, date=date)
    merged = {point.kind: point for point in (*before.blocks, *points)}
    blocks = tuple(merged[kind] for kind in sorted(merged))
    seen = tuple(references) or before.references
    return replace(device, measurements=replace(before, blocks=blocks, references=seen))
