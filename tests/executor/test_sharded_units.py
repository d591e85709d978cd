"""Which blocks are units of their own under FSDP2; where no parameter is sharded there are none,
and copies whose gradients can wait for a W."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from executor.mesh import make_mesh
from executor.parallelize import apply_fully_sharded
from executor.split_backward import SplitBackward
from executor.stages import StageModule
from executor.starting_weights import StartingWeights
from executor.unit_gradients import keep_gradient_sums
from profiles.errors import RunError
from tests.executor.cases import CNN_ENTRIES, make_plan
from tests.executor.one_process import stages_of


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def made(stage: StageModule) -> StartingWeights:
    """Of a stage whose weights are there already."""
    return StartingWeights(stage.model, torch.device("cpu"), 0)


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
    apply_fully_sharded(
        stage,
        replace(plan, zero_stage=zero_stage, degrees=replace(plan.degrees, dp=dp)),
        mesh,
        torch.bfloat16,
        made(stage),
    )
    assert isinstance(stage, FSDPModule) == bool(units)
    assert (stage.copies is None) == bool(units)
    named = stage.model.named_modules()
    assert [path for path, module in named if isinstance(module, FSDPModule)] == units


@pytest.mark.usefixtures("alone")
def test_a_large_copys_gradient_waits_for_the_w_and_no_longer() -> None:
    plan = make_plan("tests.executor.tiny_models:one_wide_block", ("", "1", "2"), precision="bf16")
    (stage,) = stages_of(plan)
    stage.model, stage.split = nn.Sequential(nn.Linear(1024, 1024)), SplitBackward()
    weight = stage.model[0].weight
    apply_fully_sharded(stage, plan, make_mesh(plan, "cpu"), torch.bfloat16, made(stage))
    with stage.split.watching():
        out = stage.model(torch.ones(1, 1024, dtype=torch.bfloat16))
    with stage.split.input_half():
        out.sum().backward()
    keep_gradient_sums(stage)
    assert weight.grad is None
    stage.split.take()()
    assert stage.model[0].weight.grad is None
    torch.testing.assert_close(weight.grad, torch.ones(1024, 1024), rtol=0, atol=0)


@pytest.mark.usefixtures("alone")
def test_an_older_torch_is_refused_where_values_decide_what_is_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(FSDPModule, "set_reduce_scatter_unused_params", raising=False)
    for model, entries in (("replay_zoo:one_each", ("",)), ("tiny_models:cnn", CNN_ENTRIES)):
        plan = make_plan(f"tests.executor.{model}", entries)
        (stage,) = stages_of(plan)
        sharded = replace(plan, zero_stage=3, degrees=replace(plan.degrees, dp=2))
        mesh = make_mesh(plan, "cpu")
        refused = pytest.raises(RunError, match=r"gradients of different weights.*--zero 0")
        with refused if stage.flow.by_value else nullcontext():
            apply_fully_sharded(stage, sharded, mesh, torch.float32, made(stage))
        assert stage.flow.by_value == (entries == ("",))
