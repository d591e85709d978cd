"""Fronts of layouts against every layout priced alone."""

from dataclasses import replace

import pytest

from planner.layout.layout_question import context_of
from planner.layout.memory_floor import MemoryLimit
from planner.layout.pareto import device_front, memory_front
from planner.layout.prices import LayoutPrices, legal_layouts
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_device
from simulator.memory.footprint import footprint
from simulator.training_run.step.coefficients import shipped_coefficients
from tests.planner.layout.asked import question, solved


def test_the_front_of_memory_is_that_of_enumeration():
    asked = question(tp=(1, 2), cp=(1,), pp=(1, 2, 4))
    base, context = context_of(asked)
    layouts = legal_layouts(asked.space, replace(context, may_idle=False))
    prices = LayoutPrices(base, shipped_coefficients())
    limit = MemoryLimit(capacity_bytes=get_device(base.device).usable_bytes)
    every = []
    for index in range(len(layouts)):
        run = layouts.run(base, index)
        memory = footprint(run).needed_bytes
        if memory <= limit.of(run):
            every.append((float(prices.exact_parts(run).total_s[0]), memory))
    front, least = [], float("inf")
    for step_s, memory in sorted(every):
        if memory < least:
            least = memory
            front.append((step_s, memory))
    found = memory_front(asked)
    assert len(found) > 3
    assert [one.memory.needed_bytes for one in found] == pytest.approx([m for _, m in front])
    assert [one.step_time_s for one in found] == pytest.approx([s for s, _ in front], rel=1e-9)


def test_fewer_devices_are_cheaper_and_slower():
    """The parts of 1, 2, 4, ... and all nodes, each solved alone; two nodes are too few."""
    model, pins = "llama-3.1-70b", {"tp": (4, 8), "cp": (1,), "micro_batch": (1,)}
    every = []
    for nodes in (1, 2, 4, 8, 9):
        best = solved(question(model, f"{nodes}x8xh100-sxm", batch=72, **pins)).chosen
        assert (best is None) is (nodes < 4)
        if best is not None:
            every.append((best.prediction.step_time_s.value, nodes * 8))
    front, least = [], float("inf")
    for step_s, devices in sorted(every):
        if devices * step_s < least:
            least = devices * step_s
            front.append((step_s, devices))
    found = device_front(question(model, "9x8xh100-sxm", batch=72, **pins), clock=lambda: 0.0)
    assert [(layout.step_time_s, part.num_devices) for part, layout in found] == front
    assert [devices for _, devices in front] == [72, 64, 32]


def test_a_cluster_without_a_count_of_nodes():
    asked = question()
    unnamed = replace(asked, cluster=replace(asked.cluster, name="ours"))
    with pytest.raises(InputError, match="--pareto usd needs a cluster such as"):
        device_front(unnamed, clock=lambda: 0.0)
