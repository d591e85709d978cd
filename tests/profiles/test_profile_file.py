"""Profile files: block points are merged by kind and device, and the file is never half-written."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from profiles.document import read_document, write_document
from profiles.errors import DocumentError, InputError
from profiles.hardware.catalogue.catalog import CLUSTER_SCHEMA
from profiles.hardware.catalogue.cluster import Cluster, Level, NodeGroup
from profiles.hardware.catalogue.device import BlockPoint, Device, MatmulPoint, Measurements
from profiles.hardware.catalogue.link import Link
from profiles.hardware.probe.measured_blocks import with_blocks
from profiles.sourced import Sourced


def number(value: float) -> Sourced:
    return Sourced(value=value, source="test", date="2026-11-21", method="measured")


def device(name: str) -> Device:
    matmul = MatmulPoint(dtype="float32", batch=1, m=8, n=8, k=8, time_s=1e-6)
    return Device(
        name=name,
        vendor="test",
        type="cpu",
        peak_flop_per_s={"float32": number(1e11)},
        memory_bytes=number(1e10),
        reserved_bytes=number(1e8),
        memory_bandwidth_bytes_per_s=number(1e10),
        power_w=number(10),
        launch_s=number(1e-6),
        measurements=Measurements(source="test", date="2026-11-21", matmul=(matmul,)),
    )


def cluster(*names: str) -> Cluster:
    link = Link(
        name="loopback",
        bandwidth_bytes_per_s=number(1e9),
        latency_s=number(1e-4),
        efficiency=number(0.5),
    )
    groups = tuple(NodeGroup(count=1, devices_per_node=2, device=device(n)) for n in names)
    level = Level(name="machine", domain_size=2 * len(names), link=link)
    return Cluster(name="local", groups=groups, levels=(level,))


def point(kind: str, forward_s: float) -> BlockPoint:
    return BlockPoint(
        kind=kind, label="Layer", forward_s=forward_s, backward_s=0.2, sample_count=8, spread=0.01
    )


def blocks(value: Cluster, index: int = 0) -> dict[str, float]:
    measurements = value.device_at(index).measurements
    assert measurements is not None
    return {p.kind: p.forward_s for p in measurements.blocks}


def test_a_newer_point_of_a_kind_replaces_the_older() -> None:
    first = with_blocks(cluster("a"), [point("x", 0.1), point("y", 0.3)])
    second = with_blocks(first, [point("x", 0.2), point("w", 0.4)])
    assert blocks(second) == {"w": 0.4, "x": 0.2, "y": 0.3}
    measurements = second.device_at(0).measurements
    assert measurements is not None
    assert len(measurements.matmul) == 1  # what was measured before stays


def test_points_go_to_every_node_of_the_device() -> None:
    machine = cluster("a", "a")
    assert blocks(with_blocks(machine, [point("x", 0.1)]), 2) == {"x": 0.1}


def test_blocks_need_one_kind_of_device_whose_ops_were_measured() -> None:
    with pytest.raises(InputError, match="cluster local has a, b"):
        with_blocks(cluster("a", "b"), [point("x", 0.1)])
    bare = cluster("a")
    group = replace(bare.groups[0], device=replace(bare.device_at(0), measurements=None))
    with pytest.raises(InputError, match="run `shardwright profile` on it first"):
        with_blocks(replace(bare, groups=(group,)), [point("x", 0.1)])


def test_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "local.json"
    write_document(path, with_blocks(cluster("a"), [point("x", 0.1)]), schema=CLUSTER_SCHEMA)
    before = path.read_bytes()
    assert blocks(read_document(path, Cluster, schema=CLUSTER_SCHEMA)) == {"x": 0.1}

    def full_disk(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(DocumentError, match="no space left"):
        write_document(path, with_blocks(cluster("a"), [point("y", 0.1)]), schema=CLUSTER_SCHEMA)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["local.json"]
