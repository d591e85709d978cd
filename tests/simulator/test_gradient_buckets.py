"""Buckets of gradients and copies of gathered slices, by hand and by DDP's own rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import distributed

from simulator.training_run.framework.framework import load_framework
from simulator.training_run.messages.gradient_exchange import (
    copied_slices,
    gradient_buckets,
    waiting_buckets,
)
from simulator.training_run.messages.run_links import links_of
from simulator.training_run.messages.step_messages import data_messages
from simulator.training_run.step.features import features
from simulator.training_run.step.step_time import step_parts
from simulator.values.prediction import Part
from tests.simulator.described_runs import GPT_RUN, LLAMA_8B, changed, of_each, plain

# 8B on 64 nodes of H100, tensor parallelism over half a node, no stages.
RUN = changed(
    GPT_RUN,
    id="whole",
    model=LLAMA_8B,
    device="h100-sxm-80gb",
    stack="nanotron",
    precision="bf16",
    seq_len=4096,
    tp=4,
    pp=1,
    dp=128,
    schedule="none",
    zero_stage=0,
    global_batch=256,
)
SHARDED = replace(RUN, zero_stage=1)
NANOTRON, MEGATRON = load_framework("nanotron"), load_framework("megatron-core")


@pytest.mark.parametrize(
    ("tp", "buckets"),
    [
        # Matrices of 14336, 28672, 4096 and 6144 rows times 4096 columns / tp, in the order of the
        # backward; 25 MiB hold 12.5 Mi weights. The head is one bucket, the embedding another.
        # tp 4: 14 Mi | 28 Mi | 4 + 6 + 14 Mi of the next layer | 28 Mi | ...: two per layer, one
        # more for the first 14 Mi; the last layer's 4 + 6 Mi go with the embedding.
        (4, 1 + 1 + 2 * 32 - 1 + 1),
        # tp 8: 7 + 14 Mi | 2 + 3 + 7 + 14 Mi | ...: one per layer.
        (8, 1 + 32 + 1),
        # tp 1: 56 Mi | 112 Mi | 16 Mi | 24 Mi: four per layer.
        (1, 1 + 4 * 32 + 1),
    ],
)
def test_the_tensor_that_reaches_the_limit_closes_a_bucket(tp: int, buckets: int) -> None:
    assert gradient_buckets(changed(RUN, tp=tp, dp=512 // tp), NANOTRON) == buckets
    assert gradient_buckets(RUN, MEGATRON) == 1.0


@settings(max_examples=100)
@given(
    layers=st.integers(1, 6),
    hidden=st.sampled_from([64, 256, 512]),
    ffn=st.integers(64, 4096),
    tied=st.booleans(),
    mib=st.sampled_from([1, 2, 25]),
)
@example(layers=1, hidden=256, ffn=1024, tied=False, mib=1)  # a head as large as a layer
def test_small_buckets_are_those_of_torch(
    layers: int, hidden: int, ffn: int, tied: bool, mib: int
) -> None:
    """Two matrices of the feed-forward, then two of the attention, in 16 bits, from the head."""
    model = replace(
        LLAMA_8B,
        num_layers=layers,
        hidden_size=hidden,
        ffn_size=ffn,
        vocab_size=4096,
        tied_embeddings=tied,
        num_heads=8,
        num_kv_heads=8,
        head_size=hidden // 8,
    )
    run = changed(RUN, model=model, tp=1)
    table = [4096 * hidden]
    layer = [ffn * hidden, 2 * ffn * hidden, hidden * hidden, 3 * hidden * hidden]
    sizes = (table if not tied else []) + layer * layers + table
    tensors = [torch.empty(size, dtype=torch.bfloat16, device="meta") for size in sizes]
    limits = [distributed._DEFAULT_FIRST_BUCKET_BYTES, mib * 2**20]
    expected, _ = distributed._compute_bucket_assignment_by_size(tensors, limits)
    stack = replace(NANOTRON, bucket_bytes=mib * 2.0**20)
    assert gradient_buckets(run, stack) == len(expected)


def test_the_fullest_of_several_stages_has_no_head() -> None:
    """18 of 32 layers at tp 4: 14 Mi | 28 Mi | 4 + 6 + 14 Mi | 28 Mi | ..., and the embedding."""
    staged = changed(RUN, pp=2, dp=64, schedule="1f1b")
    assert gradient_buckets(staged, NANOTRON) == 2 * 18 + 1


def test_every_bucket_is_a_collective() -> None:
    """The bytes are the same; the latency is one ring or tree per bucket."""
    count = gradient_buckets(RUN, NANOTRON)
    links = links_of(RUN)
    _, apart = data_messages(RUN, NANOTRON, links)
    _, at_once = data_messages(RUN, replace(NANOTRON, bucket_bytes=0.0), links)
    # One tree over 64 nodes, 2 x log2(64) hops, is less than a ring's 2 x 63.
    hop = RUN.node_network.latency_s
    assert apart.outer_latency_s == pytest.approx(count * 12 * hop)
    assert apart.outer_s > 0.9 * at_once.outer_s
    assert at_once.outer_latency_s <= 126 * hop


def test_buckets_wait_where_collectives_do() -> None:
    """128 ranks each. Not in fewer nodes without stages, nor with ZeRO 1's reduce-scatters."""
    count = gradient_buckets(RUN, NANOTRON)
    assert waiting_buckets(RUN, NANOTRON) == pytest.approx(128 * count)
    fewer = changed(RUN, dp=32)
    for calm in (fewer, SHARDED, changed(RUN, tp=32, dp=16)):
        assert waiting_buckets(calm, NANOTRON) == 0.0, calm
    assert waiting_buckets(RUN, MEGATRON) == 0.0
    c = of_each(plain(wait_us=1e6))
    assert step_parts(features([RUN]), c)[Part.REDUCE][0] == pytest.approx(128 * count, rel=1e-3)


def test_every_rank_has_a_slice_of_every_tensor() -> None:
    """Six tensors in each of 32 layers and a table, from 128 ranks."""
    slices = (6 * 32 + 1) * 128
    assert copied_slices(SHARDED, NANOTRON) == slices
    for none in (RUN, changed(SHARDED, dp=1)):
        assert copied_slices(none, NANOTRON) == 0.0
    assert copied_slices(SHARDED, MEGATRON) == 0.0
    c = of_each(plain(slice_us=1e6))
    assert step_parts(features([SHARDED]), c)[Part.REDUCE][0] == pytest.approx(slices, rel=1e-3)
