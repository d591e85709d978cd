"""Which framework a row ran: forks and wrappers, generations, and rows that name none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiles.hardware.catalogue.catalog import get_device
from shardwright.runs.complete import complete_run
from shardwright.runs.framework_candidates import Candidate, framework_candidates
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.framework.run_conditions import attention_kernel
from simulator.training_run.step.features import features
from tests.simulator.gpt_row import GPT_ROW, said

ROW = replace(GPT_ROW, recompute="full", framework="")


@pytest.mark.parametrize(
    ("framework", "device", "source", "stack"),
    [
        ("Megatron-Kwai", "h800-sxm-80gb", "", "megatron-core-2023"),
        ("Megatron-SWIFT", "a800-sxm-80gb", "", "megatron-core-2023"),
        (
            "Megatron-LLaMA",
            "a100-sxm-80gb",
            "README.md @25306de8 (2023-10-09)",
            "megatron-core-2023",
        ),
        (
            "Megatron-LM (sail-sg fork)",
            "a100-sxm-80gb",
            "README @6191c3bf (2025-03)",
            "megatron-core-2025",
        ),
        ("FlagScale (Megatron)", "h100-sxm-80gb", "", "megatron-core"),
        ("FlagScale 0.3 (Megatron)", "a100-sxm-80gb", "", "megatron-core-2023"),
        ("FlagScale (Megatron)", "a100-sxm-80gb", "arXiv 2210.02414", "megatron-2021"),
        (
            "MindSpeed (Megatron on Ascend)",
            "ascend-910b",
            "@9252dc91 (2024-07-29)",
            "megatron-core",
        ),
        ("XTuner (DeepSpeed)", "a100-sxm-80gb", "", "transformers"),
        ("ms-swift DeepSpeed ZeRO-3", "a800-sxm-80gb", "", "transformers"),
        ("LLaMA-Factory 0.9", "h100-sxm-80gb", "", "transformers"),
        ("lit-gpt (Lightning FSDP)", "a100-sxm-40gb", "", "torch-fsdp"),
    ],
)
def test_forks_and_wrappers(framework: str, device: str, source: str, stack: str) -> None:
    run = replace(ROW, framework=framework, device=device, source=source)
    done = complete_run(run)
    assert (done.stack, done.stack_assumed) == (stack, "fork")
    assert f"stack {stack} for {framework!r}, a fork or wrapper of it" in said(run)
    assert done.as_published() == done
    assert hash(done) == hash(complete_run(run))


@pytest.mark.parametrize(
    ("framework", "device", "source", "stack", "assumed"),
    [
        ("Megatron-LM", "a100-sxm-80gb", "README (2026-05-16)", "megatron-core-2025", "dated"),
        (
            "Megatron-LM (mcore)",
            "h100-sxm-80gb",
            "@e865051 (2026-05-16)",
            "megatron-core-2025",
            "dated",
        ),
        ("Megatron-LM", "a100-sxm-80gb", "logs of March 2024", "megatron-core-2024", "dated"),
        ("Megatron-LM core_v0.6.0", "a800-sxm-80gb", "", "megatron-core-2024", ""),
        ("Megatron-LM", "a100-sxm-80gb", "", "megatron-2021", "dated"),
        # A paper of 2024 may have run the code of 2021 to compare with.
        ("Megatron-LM", "a100-sxm-80gb", "arXiv 2401.10241", "megatron-2021", "dated"),
        # A commit is no version number.
        ("Megatron-LM (2bc6cd3)", "h800-sxm-80gb", "", "megatron-core-2023", "dated"),
        ("Megatron-LM v0.12.0rc3", "a100-sxm-80gb", "logs of 2025-06", "megatron-core", ""),
        ("Megatron-Core 0.14", "h100-sxm-80gb", "", "megatron-core-2025", ""),
        ("Megatron-Core 0.10", "h100-sxm-80gb", "", "megatron-core", ""),
        (
            "DeepSpeed ZeRO-3 (HF transformers)",
            "a100-sxm-80gb",
            "(2024-02)",
            "transformers",
            "dated",
        ),
        ("ColossalAI", "h200-sxm", "", "unknown-2023", "dated"),
        ("nanotron v0.5-dev", "h100-sxm-80gb", "", "nanotron", ""),
    ],
)
def test_the_rows_text_dates_a_framework(
    framework: str, device: str, source: str, stack: str, assumed: str
) -> None:
    done = complete_run(replace(ROW, framework=framework, device=device, source=source))
    assert (done.stack, done.stack_assumed) == (stack, assumed)


@pytest.mark.parametrize(
    ("changes", "stack"),
    [
        ({"vpp": 2}, "megatron-core"),
        ({"schedule": "interleaved-1f1b", "vpp": None}, "megatron-core"),
        ({"sequence_parallel": True}, "megatron-core"),
        ({"pp": 1, "cp": 2, "dp": None}, "megatron-core"),
        ({"tp": 1, "pp": 1, "dp": None, "zero_stage": 3, "micro_batch": 1}, "torch-fsdp"),
        ({"tp": 1, "pp": 1, "dp": None, "micro_batch": 1}, "unknown-2023"),
    ],
)
def test_a_layout_tells_the_framework(changes: dict[str, object], stack: str) -> None:
    silent = replace(ROW, device="h100-sxm-80gb", schedule="", vpp=None)
    run = replace(silent, **changes)
    done = complete_run(run)
    assert (done.stack, done.stack_assumed) == (stack, "inferred")


@pytest.mark.parametrize("framework", ["", "Megatron-LM", "DeepSpeed", "MyOwn", "FSDP"])
@pytest.mark.parametrize("device", ["v100-sxm2-32gb", "a100-sxm-80gb", "h800-sxm-80gb", "tpu-v5p"])
def test_probabilities(framework: str, device: str) -> None:
    run = replace(ROW, framework=framework)
    found = framework_candidates(run, get_device(device))
    chances = [each.probability for each in found]
    assert sum(chances) == pytest.approx(1.0)
    assert chances == sorted(chances, reverse=True)
    assert len({each.stack for each in found}) == len(found)
    assert found[0].stack == complete_run(replace(run, device=device)).stack


def test_zero_3_alone_is_fsdp_or_deepspeed() -> None:
    run = replace(ROW, tp=1, pp=1, dp=None, zero_stage=3, schedule="", vpp=None)
    found = framework_candidates(run, get_device("h100-sxm-80gb"))
    assert [each.stack for each in found] == ["torch-fsdp", "transformers", "unknown-2023"]
    assert isinstance(found[0], Candidate)


@pytest.mark.parametrize(
    ("framework", "device", "seq_len", "fused"),
    [
        ("", "h100-sxm-80gb", 2048, True),
        ("DeepSpeed", "a100-sxm-80gb", 65536, True),
        ("DeepSpeed", "a100-sxm-80gb", 262144, True),
        ("Megatron-DeepSpeed", "a100-sxm-80gb", 131072, True),
        ("Megatron-DeepSpeed", "a800-sxm-80gb", 2048, True),
        ("Megatron-DeepSpeed", "a100-sxm-80gb", 2048, False),
        ("MyOwn", "v100-sxm2-32gb", 2048, False),
        ("MyOwn (xformers)", "v100-sxm2-32gb", 2048, True),
    ],
)
def test_attention_is_fused_since_2023(
    framework: str, device: str, seq_len: int, fused: bool
) -> None:
    run = replace(ROW, framework=framework, device=device, seq_len=seq_len)
    done = complete_run(run)
    assert (attention_kernel(done, load_framework(done.stack)) != "unfused") == fused


def test_a_program_in_c_launches_nothing_that_the_host_waits_for() -> None:
    run = replace(
        ROW, framework="llm.c (CUDA, cuDNN attention)", tp=1, pp=1, dp=None, micro_batch=1
    )
    done = complete_run(replace(run, recompute="", schedule="none"))
    assert (done.stack, done.stack_assumed, done.recompute) == ("llm.c", "", "none")
    row = features([done])
    assert row.launches[0] == row.kernels_forward[0] == row.kernels_backward[0] == 0.0
