"""A cluster's network and a published row's words for it are one network."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.layout.layout_question import LayoutSolver, base_run
from planner.layout.layout_relax import sensitivities
from planner.run_option import RequestedOptions
from profiles.hardware.catalogue.catalog import (
    get_cluster,
    get_device,
    get_link,
    link_names,
    scaled,
)
from profiles.hardware.catalogue.cluster import Cluster
from shardwright.runs.network_text import network_of
from simulator.training_run.framework.framework import load_framework
from tests.planner.layout.asked import question
from tests.simulator.described_runs import LLAMA_8B

OUTER = [name for name in link_names() if get_link(name).kind]


@pytest.mark.parametrize("name", OUTER)
def test_plan_and_predict_see_one_network(name: str) -> None:
    cluster = get_cluster("4x8xh100-sxm")
    inner, outer = cluster.levels
    link = replace(get_link(name), shared_by=outer.link.shared_by)
    cluster = replace(cluster, levels=(inner, replace(outer, link=link)))
    run = base_run(
        "llama",
        LLAMA_8B,
        cluster,
        rules=load_framework("megatron-core").rules,
        global_batch=64,
        seq_len=4096,
        precision="bf16",
    )
    read = network_of(name, run.device, run.node_devices)
    assert replace(run.node_network, source="", assumed=False) == replace(
        read, source="", assumed=False
    )


def two_sites(*, network: float = 1.0, line: float = 1.0) -> Cluster:
    """Two nodes in each of two sites, whose line has a fiftieth of the network's rate."""
    cluster = get_cluster("4x8xh100-sxm")
    inner, outer = cluster.levels
    rate = outer.link.bandwidth_bytes_per_s
    fast, far = (
        replace(outer.link, bandwidth_bytes_per_s=scaled(rate, by)) for by in (network, line / 50)
    )
    between = replace(outer, domain_size=16, link=fast)
    levels = (inner, between, replace(outer, name="line", domain_size=32, link=far))
    return replace(cluster, name="two sites", levels=levels)


def test_each_change_is_the_best_of_a_question_that_is_changed_so() -> None:
    solver = LayoutSolver(clock=lambda: 0.0)
    asked = question(on="4x8xh100-sxm", batch=64, cp=(1,), micro_batch=(1,), zero=(1,))
    asked = replace(asked, cluster=two_sites())
    best = solver.best(asked)
    assert best is not None
    found = {s.change: s.step_time_s for s in sensitivities(asked, best.run, solver)}
    states = "states may be in host memory (--optimizer-offload)"
    offloaded = replace(asked, options=RequestedOptions(optimizer_offload=True))
    assert found.pop(states) == pytest.approx(solver.best(offloaded).step_time_s)
    again = sensitivities(offloaded, best.run, solver)
    assert found.keys() == {s.change for s in again}
    for change, changed in {
        "a network of twice the rate between nodes": replace(asked, cluster=two_sites(network=2)),
        "twice the rate of line": replace(asked, cluster=two_sites(line=2)),
        "twice the batch": replace(asked, global_batch=128),
    }.items():
        expected = solver.best(changed)
        assert expected is not None
        assert found[change] == pytest.approx(expected.step_time_s) != best.step_time_s


def test_ten_gib_of_memory_and_twice_the_devices() -> None:
    solver = LayoutSolver(clock=lambda: 0.0)
    asked = question("llama-3.1-70b", "4x8xh100-sxm", batch=64, cp=(1,), micro_batch=(1,))
    best = solver.best(asked)
    assert best is not None
    found = {s.change: s.step_time_s for s in sensitivities(asked, best.run, solver)}
    for gib, words in ((10, "10 GiB more"), (-10, "10 GiB less")):
        share = gib * 2**30 / get_device("h100-sxm").usable_bytes
        expected = solver.best(asked, capacity=1 + share)
        assert expected is not None
        change = f"{words} memory per device"
        assert found[change] == pytest.approx(expected.step_time_s) != best.step_time_s
    doubled = solver.best(replace(asked, cluster=get_cluster("8x8xh100-sxm")))
    assert doubled is not None
    assert found["twice the devices (8x8xh100-sxm)"] == doubled.step_time_s
    assert not [change for change in found if "--sequence-parallel" in change]
    one = question(on="1x8xh100-sxm", stack="torchtitan")
    alone = solver.best(one)
    assert alone is not None
    found = {s.change: s.step_time_s for s in sensitivities(one, alone.run, solver)}
    assert not [change for change in found if "between nodes" in change]
