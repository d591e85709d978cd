"""The row of an imported run names framework files, not words about frameworks."""

from __future__ import annotations

import pytest
from shardwright_frameworks.imported_run import ImportedRun
from shardwright_frameworks.requests.table_row import STACKS, row_of_import

from simulator.training_run.framework.framework import framework_names, framework_of


def test_frameworks_are_files() -> None:
    assert set(STACKS.values()) <= set(framework_names())
    assert {name: framework_of(name) for name in STACKS.values()} == {
        name: name for name in STACKS.values()
    }


@pytest.mark.parametrize(
    ("framework", "zero_stage", "files", "stack"),
    [
        ("megatron-lm", 1, (), "megatron-core"),
        ("accelerate", 3, ("fsdp.yaml",), "torch-fsdp"),
        ("transformers", 3, ("deepspeed.json",), "transformers"),
        ("deepspeed", 3, (), "transformers"),
        ("openrlhf", None, (), "openrlhf"),
        (None, None, (), ""),
    ],
)
def test_the_framework_of_a_row(
    framework: str | None, zero_stage: int | None, files: tuple[str, ...], stack: str
) -> None:
    run = ImportedRun(framework=framework, zero_stage=zero_stage, files=files)
    assert row_of_import(run).framework == stack


def test_hybrid_sharding_is_in_the_row() -> None:
    run = ImportedRun(framework="torchtitan", dp=8, dp_replicate=2, zero_stage=3)
    assert (row_of_import(run).dp, row_of_import(run).dp_replicate) == (8, 2)
    assert row_of_import(ImportedRun(dp=8)).dp_replicate is None
