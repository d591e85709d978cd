"""Recomputation of norms and activations alone frees their outputs and runs no matmul again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.memory.footprint import footprint
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.stage_layers import recomputed_shares
from tests.simulator.described_runs import GPT_RUN, LLAMA_RUN, MIXTRAL, changed

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
    assert recomputed_shares(run, load_framework(run.stack)) == (0.0, 0.0, 0.7)


def test_compilers_and_torch_do_not_run_the_last_matmul_again() -> None:
    # Llama 3 8B: down 4096 x 14336 of 4096 x (2 x 4096 + 2 x 1024 + 3 x 14336) weights.
    run = replace(LLAMA_RUN, stack="maxtext", recompute="full")
    down = 14336 / (2 * 4096 + 2 * 1024 + 3 * 14336)
    matmul, core, passes = recomputed_shares(run, load_framework("maxtext"))
    assert (matmul, core, passes) == (pytest.approx(1.0 - down), 1.0, 1.0)
    assert recomputed_shares(run, load_framework("torch-fsdp"))[0] == pytest.approx(1.0 - down)
    assert recomputed_shares(run, load_framework("megatron-core"))[0] == 1.0
    assert recomputed_shares(run, load_framework("transformers"))[0] == 1.0
