"""Which blocks are units of their own under FSDP2; where nothing is sharded there are none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from executor.mesh import make_mesh
from executor.parallelize import apply_fully_sharded, is_fully_sharded
from tests.executor.cases import make_plan
from tests.executor.one_process import stages_of


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("zero_stage", "dp", "units"),
    # Gathered block by block; where nothing is, bf16 takes copies and no FSDP2.
    [(3, 2, ["0", "1", "2"]), (0, 1, [])],
)
def test_blocks_are_units_where_parameters_are_sharded_and_else_copied(
    zero_stage: int, dp: int, units: list[str]
) -> None:
    plan = make_plan("tests.executor.tiny_models:one_wide_block", ("", "1", "2"), precision="bf16")
    (stage,) = stages_of(plan)
    mesh = make_mesh(plan, "cpu")
    apply_fully_sharded(stage, replace(plan, zero_stage=zero_stage, dp=dp), mesh, torch.bfloat16)
    assert is_fully_sharded(stage) == bool(units)
    assert (stage.copies is None) == bool(units)
    named = stage.model.named_modules()
    assert [path for path, module in named if isinstance(module, FSDPModule)] == units
