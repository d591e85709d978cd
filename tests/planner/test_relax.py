"""Changes that are tried where nothing fits."""

from __future__ import annotations

import pytest

from planner.axes import Axes
from planner.blocks.relax import candidates, relaxation
from planner.neighbors import grown, with_device
from profiles.errors import InputError
from profiles.hardware.catalogue.cluster import Cluster, Level, NodeGroup
from profiles.hardware.catalogue.device import Device
from profiles.hardware.catalogue.link import Link
from profiles.sourced import Sourced
from simulator.values.plan import Recompute
from tests.planner.one_block import one_block_plan


def number(value):
    return Sourced(value=value, source="made up for this test", date="2026-11-21", method="assumed")


def device(name, gib, vendor="acme"):
    return Device(
        name=name,
        vendor=vendor,
        type="gpu",
        aliases=(name.split("-", maxsplit=1)[0],),
        peak_flop_per_s={"bfloat16": number(1e15)},
        memory_bytes=number(gib * 2.0**30),
        reserved_bytes=number(0.0),
        memory_bandwidth_bytes_per_s=number(1e12),
        power_w=number(700.0),
        launch_s=number(1e-6),
    )


def cluster(name, nodes, per_node, dev):
    link = Link(
        name="wire",
        bandwidth_bytes_per_s=number(1e11),
        latency_s=number(1e-6),
        efficiency=number(0.8),
    )
    return Cluster(
        name=name,
        groups=(NodeGroup(count=nodes, devices_per_node=per_node, device=dev),),
        levels=(Level(name="all", domain_size=nodes * per_node, link=link),),
    )


SMALL = device("small-1", 80)
HERE = cluster("4xsmall", 1, 4, SMALL)
PLAN = one_block_plan(dp=2, tp=4, micro_batch=2)


def rebuild(name):
    counts = [int(part) for part in name.split("x")[:-1]]
    if counts[-1] > 8:
        raise InputError("no node is so large")
    return cluster(name, 1 if len(counts) == 1 else counts[0], counts[-1], SMALL)


def test_pins_are_taken_back_before_anything_is_bought():
    space = Axes(tp=(8,), micro_batch=(4,), recompute=(Recompute.NONE,))
    tried = list(candidates(space, HERE, other_devices=tuple, rebuild=rebuild))
    kinds = [one.kind for one in tried]
    assert kinds[:4] == ["recompute", "micro_batch", "tp", "pins"]
    assert set(kinds[4:]) == {"devices"}
    shown = [relaxation(one, PLAN, 1.0) for one in tried[:4]]
    assert [one.flag for one in shown] == [
        "--recompute none,attention,full",
        "--micro-batch 2",
        "--tp 4",
        "--tp 4 --pp 1 --micro-batch 2",
    ]
    assert tried[2].question[0] == Axes(micro_batch=(4,), recompute=(Recompute.NONE,))


def test_devices_are_doubled_by_name():
    more = [
        one
        for one in candidates(Axes(), HERE, other_devices=tuple, rebuild=rebuild)
        if one.kind == "devices"
    ]
    assert [one.question[1].num_devices for one in more[:3]] == [8, 16, 32]
    assert relaxation(more[0], PLAN, 1.0).flag == "--on 2x4xsmall"
    assert relaxation(more[1], PLAN, 1.0).change == "16 devices instead of 4"


def test_a_described_cluster_grows_by_its_nodes():
    larger = grown(cluster("my lab", 2, 4, SMALL), 2, rebuild)
    assert larger.num_devices == 16
    assert larger.levels[-1].domain_size == 16
    assert larger.name == "my lab with 2 times the nodes"


def test_devices_with_more_memory_are_offered_nearest_first():
    others = (device("huge-1", 288), device("large-1", 141), device("tiny-1", 24))
    others += (device("other-1", 96, vendor="umbrella"),)
    larger = [
        one
        for one in candidates(Axes(), HERE, other_devices=lambda: others, rebuild=rebuild)
        if one.kind == "memory"
    ]
    assert [one.flag for one in larger] == ["--on 4xlarge", "--on 4xhuge", "--on 4xother"]
    assert larger[0].change == "devices with 141 GiB (large-1)"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("4xsmall", "4xlarge"), ("2x8xsmall", "2x8xlarge"), ("lab", "lab with large")],
)
def test_a_cluster_with_another_device_is_named_after_it(name, expected):
    assert with_device(cluster(name, 1, 4, SMALL), device("large-1", 141), rebuild).name == expected
