"""A cluster's network and a published row's words for it are one network."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.layout.layout_question import base_run
from profiles.hardware.catalogue.catalog import get_cluster, get_link, link_names
from shardwright.runs.network_text import network_of
from simulator.training_run.framework.framework import load_framework
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
