"""What a run needs of its device, in one line."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from profiles.hardware.catalogue.catalog import get_device
from shardwright.runs.complete import complete_run
from shardwright.runs.predict_runs import predict_runs
from simulator.memory.footprint import footprint
from simulator.training_run.explain.explain_memory import fit_words
from tests.simulator.gpt_row import GPT_ROW


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_the_parts_add_up_to_the_need(micro_batch: int) -> None:
    run = complete_run(replace(GPT_ROW, micro_batch=micro_batch))
    words = fit_words(footprint(run), get_device(run.device))
    need, usable = map(float, re.findall(r"needs ([\d.]+) of ([\d.]+) GiB", words)[0])
    parts = re.findall(r" ([\d.]+)(?=[,)])", words.split("(", 1)[1])
    assert sum(map(float, parts)) == pytest.approx(need, abs=0.05 * (len(parts) + 3))
    assert usable == pytest.approx(get_device(run.device).usable_bytes / 2**30, abs=0.05)


def test_a_prediction_says_what_it_counted_and_how_much_is_left() -> None:
    (made,) = predict_runs([GPT_ROW])
    assert made.memory_left_bytes is not None
    need, usable = map(float, re.findall(r"needs ([\d.]+) of ([\d.]+)", made.memory_counted)[0])
    assert usable - need == pytest.approx(made.memory_left_bytes / 2**30, abs=0.11)


def test_what_a_device_shows_is_no_more_than_it_has() -> None:
    run = replace(
        GPT_ROW, model="GPT", num_layers=32, hidden_size=4096, ffn_size=16384, num_heads=32,
        num_kv_heads=32, num_devices=8, dp=8, tp=1, pp=1, micro_batch=1, global_batch=8,
        seq_len=6400, recompute="none", zero_stage=1, framework="Megatron-Core 0.12",
        peak_memory_kind="nvidia-smi",
    )  # fmt: skip
    found, device = footprint(complete_run(run)), get_device("a100-sxm-80gb")
    # Cached blocks leave less room than the 3.5 GiB that are outside torch (megatron-core.toml).
    assert found.needed_bytes <= device.usable_bytes < found.reserved_bytes + 3.5 * 2**30
    assert found.shown_bytes == pytest.approx(device.memory_bytes.value)


def test_frozen_weights_take_no_more_than_two_bytes_in_16_bits() -> None:
    run = replace(
        GPT_ROW, family="lora", framework="PyTorch FSDP", precision="bf16", tp=1, pp=1, dp=None,
        device="h100-sxm-80gb", zero_stage=1,
    )  # fmt: skip
    memory = footprint(complete_run(run))
    count = memory.details[0].here.num_parameters
    assert memory.ranks[0].parameters_bytes == pytest.approx(2 * count, rel=0.05)
