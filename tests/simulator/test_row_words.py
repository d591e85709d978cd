"""A row's words for its device, its framework and its memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from profiles.hardware.catalogue.relatives import relative_of
from shardwright.runs.complete import UnsupportedRunError, complete_run
from shardwright.runs.complete_words import memory_kind_of
from simulator.memory.footprint import footprint
from tests.simulator.described_runs import at_starts
from tests.simulator.gpt_row import GPT_ROW


def said(**changes: Any) -> str:
    return "; ".join(complete_run(replace(GPT_ROW, **changes)).defaults)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("h100-sxm-80gb@500w", "h100-sxm-80gb@500w"),
        ("NVIDIA H100-SXM 500W", "h100-sxm-80gb@500w"),
        ("h100-sxm-96gb-500w", "h100-sxm-96gb@500w"),
        ("A100-SXM-64GB", "a100-sxm-80gb@64gb"),
        ("A100-SXM-64GB-300W", "a100-sxm-80gb@64gb@300w"),
        ("AMD MI250X", "mi250x/2"),
    ],
)
def test_device_words(device: str, name: str) -> None:
    assert complete_run(replace(GPT_ROW, device=device, devices_per_node=None)).device == name


def test_another_memory_and_cores_are_said() -> None:
    assert "a100-sxm-80gb with 64 GB" in said(device="a100-sxm-64gb")
    assert "devices are cores: 1 of 2 parts of a trainium1" in said(
        device="trn1", devices_per_node=None
    )


@pytest.mark.parametrize(("per_node", "device"), [(32, "trainium1/2"), (16, "trainium1")])
def test_more_devices_than_chips_in_a_node_are_cores(per_node: int, device: str) -> None:
    done = complete_run(replace(GPT_ROW, device="trainium1", devices_per_node=per_node))
    assert (done.device, done.node_devices, done.stack) == (device, per_node, "neuronx")


@pytest.mark.parametrize("device", ["h100-sxm@50w", "carrier pigeon", "h100-pigeon"])
def test_a_device_that_cannot_be_is_an_error(device: str) -> None:
    with pytest.raises(UnsupportedRunError):
        complete_run(replace(GPT_ROW, device=device))


@pytest.mark.parametrize(
    ("changes", "stack"),
    [
        ({"framework": "InternEvo", "device": "a100-sxm-80gb"}, "internevo"),
        ({"framework": "PaddleNLP", "device": "a100-sxm-80gb"}, "unknown-2023"),
        ({"framework": "MyOwn", "device": "v100-sxm2-16gb"}, "megatron-2021"),
        (
            {"framework": "MyOwn", "device": "a100-sxm-80gb", "source": "arXiv 2104.04473"},
            "megatron-2021",
        ),
        ({"framework": "", "device": "a100-sxm-80gb", "seq_len": 32768}, "unknown-2023"),
        ({"framework": "", "device": "a100-sxm-80gb", "num_kv_heads": 2}, "unknown-2023"),
        ({"framework": "Megatron-Core", "device": "a100-sxm-80gb"}, "megatron-core"),
        (
            {"framework": "Megatron-LM", "device": "a100-sxm-80gb", "seq_len": 32768},
            "megatron-core",
        ),
        (
            {"framework": "DeepSpeed 0.10 Ulysses", "device": "a100-sxm-80gb", "seq_len": 65536},
            "transformers",
        ),
        ({"framework": "Megatron-DeepSpeed", "device": "a800-sxm-80gb"}, "unknown-2023"),
        ({"framework": "DeepSpeed ZeRO-3", "device": "a800-sxm-80gb"}, "transformers"),
        ({"framework": "NeMo AutoModel (FSDP2)", "device": "h100-sxm-80gb"}, "nemo-automodel"),
        ({"framework": "Megatron-LM neuron SDK 2.13", "device": "trn1"}, "neuronx-megatron"),
        ({"framework": "neuronx-distributed SDK 2.20", "device": "trn1"}, "neuronx"),
        ({"framework": "", "device": "h100-sxm-80gb", "source": "MLPerf v4.0"}, "megatron-core"),
    ],
)
def test_what_dates_a_framework(changes: dict[str, object], stack: str) -> None:
    run = replace(GPT_ROW, recompute="full", **changes)
    assert complete_run(run).stack == stack


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("", ""),
        ("nvidia-smi memory.used", "device"),
        ("max over ranks of torch max_memory_allocated", "allocated"),
        ("torchtitan max reserved, printed as GB", "reserved"),
        ("torch max_memory_(allocated or reserved, not stated)", ""),
        ("peak, tool not stated", "device"),
    ],
)
def test_kinds_of_peak(words: str, kind: str) -> None:
    assert memory_kind_of(words, []) == kind


def test_a_peak_is_of_the_kind_that_is_asked() -> None:
    found = [
        footprint(complete_run(replace(GPT_ROW, peak_memory_kind=kind))).shown_bytes
        for kind in ("torch max_memory_allocated", "max reserved", "nvidia-smi")
    ]
    assert found == sorted(found)
    assert found[0] < found[1] < found[2]


def test_the_first_word_of_a_precision_is_what_it_computes_in() -> None:
    run = replace(GPT_ROW, precision="bf16 autocast + stochastic rounding")
    assert complete_run(run).precision == "bf16"
    assert "taken as bf16" in said(precision="bf16 autocast + stochastic rounding")


@pytest.mark.parametrize(
    ("device", "per_node", "name"),
    [
        ("Ascend 910B", 8, "ascend-910b"),
        ("intel-max-1550", 12, "max-1550/2"),
        ("intel-max-1550", 6, "max-1550"),
        ("AMD MI355X", 8, "mi355x"),
    ],
)
def test_devices_without_measured_kernels_borrow_a_relatives(
    device: str, per_node: int, name: str
) -> None:
    run = replace(GPT_ROW, device=device, devices_per_node=per_node, num_devices=2 * per_node)
    done = complete_run(replace(run, tp=1, pp=2, dp=None, global_batch=12 * per_node))
    assert done.device == name
    assert relative_of(name).measured_on in ("a100-sxm-80gb", "h100-sxm-80gb", "b200-sxm")
    assert 0.0 < at_starts([done]).total_s[0] < 60.0
