"""Compressed gradients: bytes by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiles.errors import InputError
from simulator.collectives import NOTHING
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.messages.gradient_exchange import compressed, expert_sides, shared_sides
from simulator.training_run.messages.rank_group import data_group
from simulator.training_run.messages.run_links import links_of, moved
from simulator.training_run.messages.step_messages import data_messages, extra_pass_bytes
from simulator.training_run.work.layer_work import layer_work
from tests.simulator.described_runs import GPT_RUN, LLAMA_RUN, MIXTRAL, changed


def test_zero_1_and_2_gather_the_updated_weights_once_per_step() -> None:
    """8.03e9 parameters of Llama 3 8B: gradients in 4 bytes, weights in 2."""
    core = load_framework("megatron-core")
    run = replace(LLAMA_RUN, stack="megatron-core", zero_stage=1)
    links, group = links_of(run), data_group(run)
    each, once = data_messages(run, core, links)
    assert each == NOTHING
    sums = moved("reduce_scatter", 4 * 8.03e9, group, links)
    weights = moved("all_gather", 2 * 8.03e9, group, links)
    assert once.inner_s == pytest.approx(sums.inner_s + weights.inner_s, rel=0.02)
    assert data_messages(replace(run, zero_stage=2), core, links) == (each, once)


def test_frozen_weights_are_gathered_as_trained_ones_are() -> None:
    """Twice per micro-batch under ZeRO 3, a layer's 218e6 in 2 bytes each."""
    fsdp, run = load_framework("torch-fsdp"), replace(LLAMA_RUN, lora=True, lora_rank=8)
    links, group = links_of(run), data_group(run)
    each, once = data_messages(run, fsdp, links)
    gather = moved("all_gather", 2 * 218.1e6, group, links)
    assert each.inner_s == pytest.approx(2 * gather.inner_s, rel=1e-3)
    assert each.inner_latency_s == pytest.approx(2 * gather.inner_latency_s)
    assert once == NOTHING
    assert data_messages(replace(run, zero_stage=2), fsdp, links) == (NOTHING, NOTHING)


def test_top_k_gathers_values_and_places_of_every_rank() -> None:
    """1 % of 1e6 gradients of each of 8 ranks, 4 bytes for a value and 4 for its place."""
    run = changed(GPT_RUN, compression="topk-0.01")
    found = compressed(run, count=1e6, sides=2e3, ranks=8)
    assert found.operation == "all_gather"
    assert found.size_bytes == pytest.approx(8 * 1e4 * 8)


def test_powersgd_sends_two_thin_factors_and_never_more_than_the_matrix() -> None:
    """Rank 4 of a 1,000 x 1,000 matrix: 4 columns and 4 rows in fp32."""
    found = compressed(changed(GPT_RUN, compression="powersgd-4"), count=1e6, sides=2e3, ranks=8)
    assert found.operation == "all_reduce"
    assert found.size_bytes == pytest.approx(4 * 2e3 * 4)
    wide = compressed(changed(GPT_RUN, compression="powersgd-4000"), count=1e6, sides=2e3, ranks=8)
    assert wide.size_bytes == pytest.approx(1e6 * 4)


@pytest.mark.parametrize(("tp", "ep"), [(1, 2), (4, 2), (2, 8), (2, 1)])
def test_sides_are_those_of_the_matrices_of_a_rank(tp: int, ep: int) -> None:
    run = changed(LLAMA_RUN, model=MIXTRAL, tp=tp, ep=ep)
    work = layer_work(run, load_framework("megatron-core"), experts=True)
    router = MIXTRAL.num_experts
    dense = sum((x.n + x.k) * x.count for x in work.matmuls if x.n != router)
    assert shared_sides(run) == pytest.approx(dense)
    experts = sum((x.n + x.k) * x.count for x in work.grouped)
    if ep == 1:  # each is divided by tp: its width of 14,336, of the gate as well
        experts = 8 * (2 * 4096 + 3 * 14336 / tp)
    assert expert_sides(run, ep) == pytest.approx(experts)
    assert expert_sides(LLAMA_RUN, 1) == 0.0


def test_compression_and_local_steps_both_stream_their_bytes() -> None:
    core = load_framework("megatron-core")
    small, local = {"compression": "powersgd-4"}, {"local_workers": 2, "local_steps": 8}
    run = changed(LLAMA_RUN, dp=8)
    parts = [extra_pass_bytes(replace(run, **each), core) for each in (small, local)]
    # Of local steps five passes over 8.03e9 weights in fp32, in each eighth step.
    assert parts[1] == pytest.approx(5 * 4 * 8.03e9 / 8, rel=0.01)
    assert extra_pass_bytes(replace(run, **small, **local), core) == pytest.approx(sum(parts))


def test_one_replica_compresses_nothing() -> None:
    core = load_framework("megatron-core")
    two = changed(LLAMA_RUN, dp=2, zero_stage=0, compression="topk-0.01")
    # Six passes over gradients in fp32.
    assert extra_pass_bytes(two, core) == pytest.approx(6 * 4 * 8.03e9, rel=0.01)
    assert extra_pass_bytes(changed(two, dp=1), core) == 0.0


def test_without_compression_there_is_no_such_message() -> None:
    with pytest.raises(InputError, match="compress"):
        compressed(GPT_RUN, count=1e6, sides=2e3, ranks=8)
