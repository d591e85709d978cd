"""Frozen weights and optimizer states in few bits, by hand and beside published peaks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.catalog import get_device
from profiles.model.figures.transformer import Transformer
from simulator.memory.footprint import footprint
from simulator.training_run.run.low_bits import (
    FROZEN_TYPES,
    OPTIMIZERS,
    frozen_bytes,
    moments_bytes,
)
from simulator.training_run.step.features import features
from simulator.training_run.work.adapter_work import (
    adapter_parameters,
    adapter_work,
    widened_bytes,
    widening_bytes,
    widening_kernels,
)
from tests.simulator.described_runs import LLAMA_RUN as MEGATRON
from tests.simulator.described_runs import changed

GIB = 2**30
FEW_BITS = OPTIMIZERS[:3]
# Qwen-7B: 32 layers of 4 x 4096^2 and 3 x 4096 x 11008 weights, tables of 151,936 x 4096.
QWEN = Transformer(
    num_layers=32,
    hidden_size=4096,
    ffn_size=11008,
    num_heads=32,
    num_kv_heads=32,
    head_size=128,
    vocab_size=151936,
    gated=True,
    tied_embeddings=False,
)
LINEAR = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
ADAPTERS = changed(
    MEGATRON, model=QWEN, device="a100-sxm-80gb", stack="transformers", dp=1, tp=1,
    pp=1, vpp=1, cp=1, sequence_parallel=False, zero_stage=0, recompute="full", micro_batch=1,
    global_batch=8, seq_len=512, precision="bf16", lora=True, lora_rank=64,
)  # fmt: skip


def test_bytes_by_hand() -> None:
    """4 bits, 8 bits to 64 of them, 32 bits to 64 x 256: 4.127 bits a weight (arXiv 2305.14314,
    section 3). Two moments of a byte with 4 bytes to 256, of half a byte with 4 to 128."""
    assert 8 * frozen_bytes("nf4", 4096) == pytest.approx(4 + 8 / 64 + 32 / (64 * 256))
    assert frozen_bytes("int8", 4096) == pytest.approx(1 + 4 / 4096)
    assert [moments_bytes(name) for name in OPTIMIZERS] == [
        8.0,
        2 * (1 + 1 / 64),
        2 * (0.5 + 1 / 32),
        8.0,  # of Muon's embeddings and norms, which AdamW updates
    ]
    with pytest.raises(UnknownNameError, match="adamw9bit"):
        moments_bytes("adamw9bit")
    with pytest.raises(UnknownNameError, match="nf5"):
        frozen_bytes("nf5", 4096)


def test_frozen_weights_in_four_bits_save_what_was_published() -> None:
    """Qwen-7B on one A100, adapters, sequences of 256 to 1,024: 20.1 to 21.5 GB in 16 bits and 11.5
    to 12.3 in 4, 8.6 to 9.2 less (github.com/QwenLM/Qwen, README.md, "Profiling of Memory").
    That was GPTQ, 4.16 bits with its scales."""
    wide, few = footprint(ADAPTERS), footprint(replace(ADAPTERS, frozen_type="nf4"))
    static = wide.fullest.parameters_bytes - few.fullest.parameters_bytes
    assert static == pytest.approx(LINEAR * (2 - frozen_bytes("nf4", 4096)))
    sharded = changed(ADAPTERS, frozen_type="nf4", stack="torch-fsdp", dp=8, zero_stage=3)
    whole = footprint(replace(sharded, zero_stage=0)).fullest.parameters_bytes
    assert footprint(sharded).fullest.parameters_bytes == pytest.approx(whole / 8)
    saved = (wide.allocated_bytes - few.allocated_bytes) / GIB
    assert 8.6 <= saved <= 9.2
    # What is trained keeps its states; one widened matrix at a time is there besides.
    assert few.fullest.optimizer_bytes == wide.fullest.optimizer_bytes
    assert widened_bytes(replace(ADAPTERS, frozen_type="nf4")) == 2 * 4096 * 11008
    assert few.fullest.transient_bytes - wide.fullest.transient_bytes == 2 * 4096 * 11008


def test_optimizer_states_save_what_was_published() -> None:
    """630 M parameters: 4 bits instead of 8 saved 0.59 to 0.6 GB (github.com/pytorch/ao/pull/478:
    8.31 and 8.32 of two libraries, 7.72 in 4 bits)."""
    assert 0.55e9 < 630e6 * (moments_bytes("adamw8bit") - moments_bytes("adamw4bit")) < 0.65e9
    whole = replace(ADAPTERS, lora=False)
    states = [
        footprint(replace(whole, optimizer=name)).fullest.optimizer_bytes for name in FEW_BITS
    ]
    assert states[0] - states[1] == pytest.approx(
        (8 - 2.03125) * footprint(whole).fullest_details.here.num_parameters
    )
    assert states[1] > states[2]
    seconds = [
        float(features([replace(whole, optimizer=name)]).optimizer_s[0]) for name in FEW_BITS
    ]
    assert seconds[0] > seconds[1] > seconds[2] > 0
    # Both moments are read and written once, at the memory's bandwidth.
    fewer = 2 * (8 - 2.03125) * footprint(whole).fullest_details.here.num_parameters
    bandwidth = get_device(whole.device).memory_bandwidth_bytes_per_s.value
    assert seconds[0] - seconds[1] == pytest.approx(fewer / bandwidth, rel=1e-3)


def test_widening_by_hand() -> None:
    """Per layer and pass 4.127 bits are read and 16 written of each weight; three kernels for each
    of four linear layers of the attention and three of the feed-forward."""
    few = replace(ADAPTERS, frozen_type="nf4")
    layer = LINEAR / 32
    assert widening_bytes(few) == pytest.approx(layer * (frozen_bytes("nf4", 4096) + 2), rel=1e-3)
    assert widening_kernels(few) == 3 * (4 + 3)
    assert widening_bytes(ADAPTERS) == 0.0
    more = adapter_work(few).forward_pass_bytes - adapter_work(ADAPTERS).forward_pass_bytes
    assert more == pytest.approx(widening_bytes(few))
    assert adapter_parameters(QWEN, 64) == 64 * ((4096 + 3 * 4096) + (4096 + 4096))


def test_split_experts_are_all_there() -> None:
    """Tensor parallelism splits each expert, so that a rank widens parts of all eight; expert
    parallelism leaves two of them to a rank."""
    experts = replace(QWEN, num_experts=8, top_k=2, expert_size=1024)
    run = changed(ADAPTERS, model=experts, node_devices=4, tp=4, frozen_type="nf4")
    assert widening_kernels(run) == 3 * (4 + 3 * 8)
    spread = changed(run, tp=1, dp=4, ep=4)
    assert widening_kernels(spread) == 3 * (4 + 3 * 2)


def test_states_in_few_bits_stay_on_the_device() -> None:
    with pytest.raises(InputError, match="moves states of adamw only, not of adamw8bit"):
        replace(MEGATRON, optimizer="adamw8bit", optimizer_offload=True)


def test_sharded_frozen_weights_are_gathered() -> None:
    """ZeRO 3 gathers frozen weights as trained ones, in as few bits as they are kept, and sums no
    gradients of them."""
    shared = changed(ADAPTERS, node_devices=8, dp=8, zero_stage=3, global_batch=64)
    few = replace(shared, frozen_type="nf4")
    wide_s, few_s = (float(features([run]).gather_inner[0]) for run in (shared, few))
    trained_s = float(features([replace(shared, lora=False)]).gather_inner[0])
    assert 0 < few_s < wide_s < trained_s
    # Of the bytes; shorter messages are less efficient.
    assert frozen_bytes("nf4", 4096) / 2 < few_s / wide_s < 0.4
    assert float(features([shared]).reduce_inner[0]) == 0.0


@given(st.sampled_from(FROZEN_TYPES), st.sampled_from(FEW_BITS), st.integers(0, 3))
def test_fewer_bits_never_need_more(frozen_type: str, optimizer: str, zero: int) -> None:
    run = changed(ADAPTERS, dp=4, zero_stage=zero, global_batch=32)
    few = replace(run, frozen_type=frozen_type, optimizer=optimizer)
    assert footprint(few).needed_bytes < footprint(run).needed_bytes
    assert few.as_published() == run


def test_only_frozen_weights_are_kept_in_few_bits() -> None:
    with pytest.raises(InputError, match="train adapters"):
        replace(ADAPTERS, lora=False, frozen_type="nf4")
