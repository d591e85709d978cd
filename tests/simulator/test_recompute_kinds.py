"""Recomputation of norms and activations alone frees their outputs and runs no matmul again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.memory.footprint import footprint
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.stage_layers import RecomputedShares, recomputed_shares
from tests.simulator.described_runs import DEEPSEEK_V3, GPT_RUN, LLAMA_RUN, MIXTRAL, changed
from tests.simulator.small_gpt import layer_bytes

DENSE = replace(
    LLAMA_RUN, stack="megatron-core", zero_stage=1, micro_batch=1, global_batch=8, recompute="none"
)
MOE = changed(DENSE, model=MIXTRAL, dp=16, pp=4, ep=8, schedule="1f1b")


def peak(run: TrainingRun, recompute: str) -> float:
    return footprint(replace(run, recompute=recompute)).allocated_bytes


@pytest.mark.parametrize("run", [DENSE, MOE, replace(GPT_RUN, stack="megatron-2021")])
def test_memory_lies_between_none_and_the_feed_forward(run: TrainingRun) -> None:
    assert peak(run, "full") < peak(run, "norm-activation") < peak(run, "none")


def test_freed_tensors_of_a_dense_layer() -> None:
    # Llama 3 8B, one sequence of 4096: outputs of two norms and the activated inner states, in 16
    # bits, of 32 layers. The peak is at the loss, where no layer is run again.
    layer = 2 * 4096 * (2 * 4096 + 14336)
    freed = peak(DENSE, "none") - peak(DENSE, "norm-activation")
    assert freed == 32 * layer


def test_no_matmul_runs_again() -> None:
    run = replace(DENSE, recompute="norm-activation")
    assert recomputed_shares(run, load_framework(run.stack)) == RecomputedShares(
        matmul=0.0, routed=0.0, attention=0.0, passes=0.7
    )


def test_compilers_and_torch_do_not_run_the_last_matmul_again() -> None:
    # Llama 3 8B: down 4096 x 14336 of 4096 x (2 x 4096 + 2 x 1024 + 3 x 14336) weights.
    run = replace(LLAMA_RUN, stack="maxtext", recompute="full")
    down = 14336 / (2 * 4096 + 2 * 1024 + 3 * 14336)
    shares = recomputed_shares(run, load_framework("maxtext"))
    assert (shares.matmul, shares.routed) == (pytest.approx(1.0 - down), pytest.approx(1.0 - down))
    assert (shares.attention, shares.passes) == (1.0, 1.0)
    for name, expected in (
        ("torch-fsdp", 1.0 - down),
        ("megatron-core", 1.0),
        ("transformers", 1.0),
    ):
        again = recomputed_shares(run, load_framework(name)).matmul
        assert again == pytest.approx(expected)


def test_up_projections_of_latent_attention_run_again_without_messages() -> None:
    """DeepSeek-V3: of 187,105,280 weights of the attention, 1536 x 128 x 192 of the queries and
    512 x 128 x 256 of keys and values are projected up; they free 24,576 + 24,576 + 16,384 values
    of 2 bytes a token. Three of 61 layers are dense, 58 have one shared expert and a router."""
    run = replace(
        changed(DENSE, model=DEEPSEEK_V3, dp=16, pp=4, ep=8, schedule="1f1b"),
        recompute="up-projection",
    )
    up = 128 * (1536 * 192 + 512 * 256)
    attention = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    feed_forward = (3 * 3 * 7168 * 18432 + 58 * (3 * 7168 * 2048 + 7168 * 256)) / 61
    shares = recomputed_shares(run, load_framework("megatron-core"))
    assert shares.matmul == pytest.approx(up / (attention + feed_forward), rel=1e-3)
    assert (shares.routed, shares.attention, shares.passes) == (0.0, 0.0, 0.0)
    freed = layer_bytes(replace(run, recompute="none")) - layer_bytes(run)
    assert freed == 4096 * 2 * (2 * 24_576 + 16_384)
    plain = replace(DENSE, recompute="up-projection")
    assert layer_bytes(plain) == layer_bytes(DENSE)
