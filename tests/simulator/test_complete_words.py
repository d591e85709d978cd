"""Completing what a row says in words: schedules, recomputation, frameworks, devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.runs.complete import complete_run
from simulator.schedules.schedule import schedule_names
from tests.simulator.gpt_row import GPT_ROW, said


@pytest.mark.parametrize(
    ("schedule", "pp", "vpp", "expected"),
    [
        ("", 1, None, ("none", 1)),
        ("1f1b", 1, 1, ("none", 1)),
        ("", 2, None, ("1f1b", 1)),
        ("", 2, 4, ("interleaved", 4)),
        ("interleaved-1f1b", 2, 3, ("interleaved", 3)),
        ("interleaved-1f1b", 2, None, ("interleaved", 6)),
        ("zb", 2, 2, ("zbv", 2)),
        ("zb", 2, 1, ("zb-h1", 1)),
        ("zb-2p", 2, 1, ("zb-2p", 1)),
        ("ZB-1p", 2, None, ("zb-1p", 1)),
    ],
)
def test_schedules(schedule: str, pp: int, vpp: int | None, expected: tuple[str, int]) -> None:
    run = replace(GPT_ROW, schedule=schedule, pp=pp, vpp=vpp, dp=None, tp=1)
    done = complete_run(run)
    assert (done.schedule, done.degrees.vpp) == expected
    assert done.schedule in schedule_names()


def test_chunks_divide_a_ranks_layers() -> None:
    # 30 layers on 2 ranks: 15 each, in chunks of 5, 3 or 1; 3 is 1.5 times two, 1 is half of it.
    run = replace(GPT_ROW, num_layers=30, schedule="interleaved-1f1b", vpp=None)
    assert complete_run(run).degrees.vpp == 5


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("", "none"),
        ("none", "none"),
        ("full", "full"),
        ("activation checkpointing", "full"),
        ("gradient checkpointing of all layers", "full"),
        ("core attention", "selective"),
        ("rematerialization on", "full"),
        ("selective", "selective"),
        ("selective modules: mlp", "mlp"),
        ("selective modules: layernorm,moe_act", "norm-activation"),
        ("selective modules: layernorm,moe", "norm-mlp"),
        ("selective modules: moe_act", "activation"),
        ("selective modules: layernorm", "norm"),
        ("selective (mlp activation func + norm)", "norm-activation"),
        ("selective (whatever this is)", "selective"),
        ("save_dot_with_context_except_mlp (selective)", "mlp"),
        ("save_dot_except_mlp", "mlp"),
        ("save_out_proj", "full"),
        ("save_qkv_proj", "full"),
        ("selective modules: mla_up_proj", "up-projection"),
        ("minimal_with_context (selective)", "minimal"),
        ("qkv_proj_offloaded", "full"),
        ("none + cpu offload 20 layers", "none"),
    ],
)
def test_recompute_words(words: str, kind: str) -> None:
    run = replace(GPT_ROW, recompute=words)
    assert complete_run(run).recompute == kind
    assert ("offloads to the host is not modelled" in said(run)) == ("offload" in words)


@pytest.mark.parametrize(
    ("framework", "device", "stack"),
    [
        ("", "v100-sxm2-16gb", "megatron-2021"),
        ("", "a100-sxm-80gb", "megatron-2021"),
        ("", "h100-sxm-80gb", "unknown-2023"),
        ("", "tpu-v5p", "maxtext"),
        ("Megatron-LM", "a100-sxm-80gb", "megatron-2021"),
        ("Megatron-LM", "b200-sxm", "megatron-core"),
        ("Megatron-LM v0.12.0rc3, TE 2.1", "a100-sxm-80gb", "megatron-core"),
        ("composer/llm-foundry FSDP", "a100-sxm-80gb", "torch-fsdp"),
        ("nanotron v0.5-dev", "h100-sxm-80gb", "nanotron"),
    ],
)
def test_stacks(framework: str, device: str, stack: str) -> None:
    assert complete_run(replace(GPT_ROW, framework=framework, device=device)).stack == stack


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("TPU-trillium", "tpu-v6e"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("H200-SXM-141GB", "h200-sxm"),
        ("B200-SXM-180GB", "b200-sxm"),
        ("mi300x-192GB", "mi300x"),
        ("NVIDIA GB200", "gb200-nvl72"),
    ],
)
def test_device_names(device: str, name: str) -> None:
    assert complete_run(replace(GPT_ROW, device=device)).device == name


@pytest.mark.parametrize(
    ("device", "devices", "per_node", "link", "node_devices"),
    [
        ("h100-sxm-80gb", 64, None, "", 8),
        ("a100-sxm-80gb", 64, 4, "", 4),
        ("gb200-nvl72", 256, 72, "", 64),  # four racks of 64, as schedulers place them
        ("gb200-nvl72", 512, 4, "", 64),  # a tray of four is not the NVLink domain
        ("gb300-nvl72", 72, 4, "", 72),
        ("gb300-nvl72", 8, 72, "", 8),
        ("tpu-v5e", 512, None, "DCN between slices", 256),  # pods of 256
        ("tpu-v5p", 128, None, "DCN between slices", 64),  # at least two slices
        ("tpu-v5p", 512, None, "", 512),
        ("tpu-v4", 6144, None, "", 3072),  # pods of 4096; PaLM's two
    ],
)
def test_devices_that_the_inner_link_joins(
    device: str, devices: int, per_node: int | None, link: str, node_devices: int
) -> None:
    run = replace(
        GPT_ROW,
        device=device,
        num_devices=devices,
        devices_per_node=per_node,
        inter_node_link=link,
        tp=1,
        pp=1,
        dp=None,
        micro_batch=1,
        global_batch=devices,
    )
    assert complete_run(run).node_devices == node_devices
