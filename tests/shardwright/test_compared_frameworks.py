"""Which frameworks `plan` compares and chooses when none is named."""

from __future__ import annotations

import pytest

from shardwright.requests.compared_frameworks import (
    compared_frameworks,
    is_supported,
    preference,
)
from simulator.training_run.fit.evidence import Evidence, EvidenceFile, supporting_runs
from tests.shardwright.test_cli import shardwright


def test_generations_and_devices_with_one_processor_count_together() -> None:
    """6 runs of 2023 on an H800 and 5 of today on an H100, of two sources; an A100 has none."""
    known = EvidenceFile(
        date="2026-11-27",
        step={
            "megatron-core, h100-sxm-80gb": Evidence(runs=5, sources=("a",)),
            "megatron-core-2023, h800-sxm-80gb": Evidence(runs=6, sources=("b",)),
            "nanotron, h100-sxm-80gb": Evidence(runs=100, sources=("a",)),
        },
    )
    assert supporting_runs("megatron-core", "h100-sxm-80gb", known).runs == 11
    assert supporting_runs("megatron-core", "h800-sxm-80gb", known).sources == ("a", "b")
    assert supporting_runs("megatron-core", "a100-sxm-80gb", known).runs == 0
    # Our executor takes the coefficients of torch-fsdp.
    assert supporting_runs("torch", "h100-sxm-80gb", known).runs == 0


@pytest.mark.parametrize("device", ["h100-sxm-80gb", "gb200-nvl72", "mi300x", "v100-sxm2-32gb"])
def test_our_executor_is_always_compared_and_old_generations_never(device: str) -> None:
    names = compared_frameworks(device)
    assert names[-1] == "torch"
    assert len(names) <= 4
    assert not any(name[-4:].isdigit() for name in names)


def test_one_source_is_not_enough() -> None:
    assert is_supported("megatron-core", "h100-sxm-80gb")
    assert not is_supported("nanotron", "h100-sxm-80gb")  # 847 runs of one source
    assert not is_supported("megatron-bridge-26.06", "h100-sxm-80gb")


def test_the_answer_without_a_framework_is_short_and_names_the_next() -> None:
    done = shardwright(
        "plan", "llama-3.1-8b", "--on", "2x8xh800-sxm", "--global-batch", "128", "--no-cache"
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Best    megatron-core: ")
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 12
    assert any(line.lstrip().startswith("torch (runs here)") for line in lines)
    assert "Basis   no fitted run of megatron-core on h800-sxm-80gb" in done.stdout


def test_layers_that_our_executor_has_no_layouts_of_are_not_compared() -> None:
    done = shardwright(
        *("plan", "mixtral-8x7b", "--on", "2x8xh800-sxm", "--global-batch", "128"),
        *("--no-cache", "--explain"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("megatron-core with ")
    assert "torch (runs here)" not in done.stdout
    assert "these layers have experts" in " ".join(done.stdout.split())


def test_a_framework_that_refuses_the_request_is_named_with_its_reason() -> None:
    done = shardwright(
        *("plan", "llama-3.1-8b", "--on", "1x8xh100-sxm", "--global-batch", "64"),
        *("--seq", "8192", "--cp", "2", "--no-cache", "--explain"),
    )
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "not compared: --cp 2: torch has no such axis" in words
    assert "and torch" not in words


def test_supported_frameworks_come_first_and_then_those_with_the_most_runs() -> None:
    names = compared_frameworks("h100-sxm-80gb")
    # nanotron has 847 fitted runs, torch-fsdp fewer, both of one source.
    groups = preference(names, "h100-sxm-80gb")
    assert groups[:2] == (("megatron-core",), ("nanotron",))
    assert sorted(name for group in groups for name in group) == sorted(names)


def test_a_device_with_a_framework_of_its_own_compares_it() -> None:
    assert compared_frameworks("trainium2") == ("neuronx", "torch")
