"""torchtitan's runs: what its defaults mean, by hand, and beside its own published tables, on which
nothing was fitted; and which Megatron of 2021 is DeepSpeed's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.runs.complete import complete_run
from shardwright.runs.predict_runs import predict_runs
from shardwright.runs.run import FIGURES, PublishedRun
from shardwright.runs.run_table import read_measured, read_runs
from simulator.memory.run_tensors import RunTensors
from simulator.training_run.framework.framework import load_framework, memory_of
from simulator.training_run.step.features import features

LLAMA_8B = PublishedRun(
    row=1,
    id="r",
    model="Llama 3.1 8B",
    family="dense",
    num_layers=32,
    hidden_size=4096,
    ffn_size=14336,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=128256,
    seq_len=8192,
    gated_mlp=True,
    tied_embeddings=False,
    device="h100-sxm-80gb",
    num_devices=64,
    devices_per_node=8,
    dp=8,
    tp=1,
    pp=8,
    global_batch=256,
    recompute="selective",
    precision="bf16",
    schedule="1f1b",
    framework="torchtitan",
)


def measured_step_times() -> dict[str, float]:
    return {x.id: x.step_time_s for x in read_measured(FIGURES) if x.step_time_s}


@pytest.mark.parametrize(
    ("framework", "precision", "stack"),
    [
        ("torchtitan", "bf16", "torchtitan"),
        ("torchtitan FSDP2 + torch.compile", "bf16", "torchtitan-compiled"),
        # float8 leans on the compiler (torchtitan docs/float8.md).
        ("torchtitan", "fp8", "torchtitan-compiled"),
    ],
)
def test_which_torchtitan(framework: str, precision: str, stack: str) -> None:
    run = complete_run(replace(LLAMA_8B, framework=framework, precision=precision))
    assert run.stack == stack


def test_a_pipeline_keeps_parameters_gathered_and_has_a_micro_batch_per_stage() -> None:
    run = complete_run(LLAMA_8B)
    assert run.zero_stage == 1
    assert run.micro_batch == 256 // 8 // 8
    assert memory_of(run).name == "torchtitan-gathered"
    interleaved = complete_run(replace(LLAMA_8B, schedule="interleaved-1f1b"))
    assert (interleaved.degrees.vpp, interleaved.micro_batch) == (2, 256 // 8 // 16)
    whole = complete_run(replace(LLAMA_8B, pp=1, dp=64))
    assert whole.zero_stage == 3
    assert memory_of(whole).name == "torchtitan"


def test_tensor_parallelism_splits_the_sequence_too() -> None:
    assert complete_run(replace(LLAMA_8B, tp=8, pp=1)).sequence_parallel


def test_every_second_matmul_is_run_again() -> None:
    """Keys (1024 wide), the output projection (4096) and the up projection (14336) of 53248."""
    run = complete_run(LLAMA_8B)
    assert run.recompute == "alternate"
    row = features((run,))
    assert row.recomputed_matmul[0] == pytest.approx((1024 + 4096 + 14336) / 53248)
    assert (row.recomputed_attention[0], row.recomputed_pass[0]) == (0.0, 1.0)


def test_what_a_layer_keeps_of_a_token() -> None:
    """In 16 bits its input, queries, values, the attention's output, the gate and the last output;
    the softmax's sum per head in fp32."""
    run = complete_run(replace(LLAMA_8B, pp=1, dp=64, micro_batch=1))
    kept = RunTensors(run, load_framework(run.stack)).layer(run.recompute).dense
    widths = 4096 + 4096 + 1024 + 4096 + 14336 + 4096
    assert kept / 8192 == pytest.approx(2 * widths + 4 * 32)


def test_beside_the_published_tables() -> None:
    """Measured at a power limit of 500 W or on H200; twelve intervals hold (nine of ten
    would be thirteen), and what the compiler and float8 bring has the right sign and about the
    right size: within 11 % (7 % while coefficients were fitted for this framework alone)."""
    runs = [run for run in read_runs(FIGURES) if run.id.startswith("torchtitan")]
    assert len(runs) == 15
    found = {x.id: x for x in predict_runs(runs)}
    measured = measured_step_times()
    held = []
    for name, x in found.items():
        assert x.step_time_s is not None
        held.append(x.step_time_s.low <= measured[name] <= x.step_time_s.high)
        # 500 W instead of 700 W, pipelines whose cuts are not printed, and on H200 gathered fp8
        # weights between nodes, which only runs inside a node were fitted on (+33 and +40 %).
        assert 0.7 < x.step_time_s.value / measured[name] < 1.42, name
    assert sum(held) >= 12
    for count in (8, 128):
        times = [
            found[f"torchtitan-8b-{count}-{k}"].step_time_s for k in ("eager", "compiled", "fp8")
        ]
        names = [f"torchtitan-8b-{count}-{k}" for k in ("eager", "compiled", "fp8")]
        for i in (0, 1):
            before, after = times[i], times[i + 1]
            assert before is not None
            assert after is not None
            gained = measured[names[i]] / measured[names[i + 1]]
            assert before.value / after.value == pytest.approx(gained, rel=0.11)


@pytest.mark.parametrize(
    ("framework", "zero_stage", "stack"),
    [
        ("Megatron-DeepSpeed", None, "megatron-deepspeed"),
        ("DeepSpeed 0.5", 1, "megatron-deepspeed"),
        # ZeRO in that generation means DeepSpeed, where nothing else is said.
        ("", 1, "megatron-deepspeed"),
        ("", None, "megatron-2021"),
        # Megatron-LM's own distributed optimizer.
        ("Megatron-LM", 1, "megatron-2021"),
    ],
)
def test_which_megatron_of_2021(framework: str, zero_stage: int | None, stack: str) -> None:
    old = replace(
        LLAMA_8B,
        model="GPT",
        num_kv_heads=32,
        gated_mlp=False,
        seq_len=2048,
        device="a100-sxm-80gb",
        framework=framework,
        zero_stage=zero_stage,
        recompute="full",
        micro_batch=1,
    )
    assert complete_run(old).stack == stack


def test_deepspeed_on_newer_devices_is_no_megatron() -> None:
    run = complete_run(replace(LLAMA_8B, framework="DeepSpeed 0.15", pp=1, zero_stage=3))
    assert run.stack == "transformers"
    # Its fork of 2021 is not what a Llama with sequences of 8192 tokens was trained with.
    for device in ("h100-sxm-80gb", "a100-sxm-80gb"):
        named = replace(LLAMA_8B, framework="Megatron-DeepSpeed", device=device, micro_batch=1)
        assert complete_run(named).stack == "unknown-2023"
