"""Changes that are tried where nothing fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.axes import Axes
from planner.blocks.explain import candidates, relaxation
from planner.neighbors import grown, with_device
from profiles.hardware.catalogue.catalog import get_cluster, get_device
from simulator.values.plan import Recompute
from tests.planner.one_block import one_block_plan

HERE = get_cluster("4xa100-40gb")
PLAN = one_block_plan(dp=2, tp=4, micro_batch=2)


def test_pins_are_taken_back_before_anything_is_bought():
    space = Axes(tp=(8,), micro_batch=(4,), recompute=(Recompute.NONE,))
    tried = list(candidates(space, HERE, other_devices=tuple))
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
    more = [one for one in candidates(Axes(), HERE, other_devices=tuple) if one.kind == "devices"]
    assert [one.question[1].num_devices for one in more] == [4 * 2**k for k in range(1, 11)]
    assert relaxation(more[0], PLAN, 1.0).flag == "--on 2x4xa100-40gb"
    assert relaxation(more[1], PLAN, 1.0).change == "16 devices instead of 4"


def test_a_described_cluster_grows_by_its_nodes():
    larger = grown(replace(get_cluster("2x4xa100-40gb"), name="my lab"), 2)
    assert larger.num_devices == 16
    assert larger.levels[-1].domain_size == 16
    assert larger.name == "my lab with 2 times the nodes"


def test_devices_with_more_memory_are_offered_nearest_first():
    others = tuple(map(get_device, ("b200", "h200", "l4", "mi300x")))
    larger = [
        one
        for one in candidates(Axes(), HERE, other_devices=lambda: others)
        if one.kind == "memory"
    ]
    assert [one.flag for one in larger] == ["--on 4xh200", "--on 4xb200", "--on 4xmi300x"]
    assert larger[0].change == "devices with 140 GiB (h200-sxm)"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("4xa100-40gb", "4xh200"), ("2x8xa100-40gb", "2x8xh200"), ("lab", "lab with h200")],
)
def test_a_cluster_with_another_device_is_named_after_it(name, expected):
    assert with_device(replace(HERE, name=name), get_device("h200")).name == expected
