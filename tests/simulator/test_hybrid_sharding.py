"""Hybrid sharding (HSDP): groups of replicas that each have all states, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_cluster
from simulator.memory.footprint import footprint
from simulator.memory.held import Elements, executor_static_bytes
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.messages.rank_group import (
    data_group,
    expert_group,
    expert_replicas,
    replicate_group,
)
from simulator.training_run.messages.run_links import links_of, moved
from simulator.training_run.messages.step_messages import data_messages
from simulator.training_run.work.rank_parameters import (
    expert_copies,
    layer_parameters,
    updated_parameters,
)
from simulator.values.degrees import Degrees
from tests.simulator.described_runs import LLAMA_RUN, changed
from tests.simulator.hand_made import plan, replicas

# Four nodes of eight H100: ZeRO 3 within each node.
NODES = changed(LLAMA_RUN, dp=32, global_batch=64)
HYBRID = changed(NODES, dp_replicate=4)


def test_a_group_has_neighboring_replicas() -> None:
    assert data_group(HYBRID).axes == ((1, 1), (8, 1))
    assert replicate_group(HYBRID).axes == ((4, 8),)
    # With tp and cp the ranks of a group are further apart.
    split = changed(HYBRID, tp=2, cp=2, dp=8, dp_replicate=2)
    assert data_group(split).axes == ((2, 2), (4, 4))
    assert replicate_group(split).axes == ((2, 16),)


def test_experts_are_replicated_within_a_group() -> None:
    """dp 8 = 2 x 4 and ep 2: each half of a group has every expert once, so two ranks share each
    expert's states."""
    run = changed(LLAMA_RUN, dp_replicate=2, ep=2)
    assert expert_replicas(run).axes == ((1, 1), (1, 1), (2, 2))
    assert replicate_group(run).axes == ((2, 4),)
    # Of the 64 ranks of a group: 16 share the experts (2 of tp, 4 of cp, 2 replicas), 4 have the
    # same. Four replicas would reach into the other group.
    wide = replace(run, degrees=Degrees(tp=8, cp=4, dp=4, ep=16, dp_replicate=2))
    assert expert_group(wide).axes == ((2, 1), (4, 8), (2, 32))
    assert expert_replicas(wide).axes == ((4, 2), (1, 32), (1, 64))
    assert expert_copies(wide) == 4


def test_weights_stay_in_a_node_and_shards_of_gradients_cross() -> None:
    links, stack = links_of(HYBRID), load_framework(HYBRID.stack)
    layer, nothing = data_messages(HYBRID, stack, links)
    whole, _ = data_messages(NODES, stack, links)
    assert nothing.total_s == 0.0
    size = layer_parameters(HYBRID) * stack.summed_gradient_bytes / 8
    across = moved("all_reduce", size, replicate_group(HYBRID), links)
    assert layer.outer_s == pytest.approx(across.outer_s)
    # Without groups two gathers in bf16 and a sum in fp32, 8 bytes of a weight, cross with 31/32;
    # of a shard's 4 bytes 2 x 3/4. The eight devices of a node share its cards either way.
    assert layer.outer_s / whole.outer_s == pytest.approx((2 * 3 / 4 * 4) / (31 / 32 * 8))


def test_memory_and_update_are_those_of_a_group_alone() -> None:
    alone = changed(NODES, dp=8, global_batch=16)
    stack = load_framework(NODES.stack)
    assert footprint(HYBRID).needed_bytes == footprint(alone).needed_bytes
    assert footprint(HYBRID).needed_bytes > footprint(NODES).needed_bytes
    assert updated_parameters(HYBRID, stack) == updated_parameters(alone, stack)


def test_states_of_our_executor_are_shared_within_a_group() -> None:
    node = get_cluster("8xh100-sxm")
    held = Elements(total=8e6, trained=8e6, gradients=8e6)
    group = replicas(node, dp=8, zero_stage=3)
    hybrid = replace(group, degrees=replace(group.degrees, dp_replicate=2))
    alone = replicas(node, dp=4, zero_stage=3)
    assert executor_static_bytes(held, hybrid) == executor_static_bytes(held, alone)
    # A group's sum of 1000 bytes, then 250 of each rank with the same shard in the other group.
    assert hybrid.gradient_sum(1000.0) == [
        ("reduce_scatter", 1000.0, (0, 1, 2, 3), 1),
        ("all_reduce", 250.0, (0, 4), 4),
    ]
    assert group.gradient_sum(1000.0) == [("reduce_scatter", 1000.0, tuple(range(8)), 1)]


def test_groups_without_sharded_states_are_refused() -> None:
    made = plan(dp=8, zero_stage=1)
    hybrid = replace(made, degrees=replace(made.degrees, dp_replicate=2))
    assert (made.shares, hybrid.shares) == (8, 4)
    with pytest.raises(InputError, match="zero_stage=0 shards none; use zero_stage 1, 2 or 3"):
        replace(hybrid, zero_stage=0)
    with pytest.raises(InputError, match="dp_replicate=4 needs a zero_stage"):
        replace(HYBRID, zero_stage=0)
    with pytest.raises(InputError, match="not priced with compression or local_workers"):
        replace(HYBRID, local_workers=2, local_steps=8)
    with pytest.raises(InputError, match="not priced with compression"):
        replace(HYBRID, zero_stage=1, compression="powersgd-4")
