"""`plan --sequence-parallel` of hand-written modules, which are planned block by block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from planner.layout.layout_answer import LayoutFile
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.model.building.tensor_parallel_rules import has_shared_tokens
from shardwright.requests import python_plan
from shardwright.requests.named_model import described_of
from shardwright.requests.plan_route import runnable_answer
from simulator.values.plan_file import PlanFile, read_plan_file
from simulator.values.workload import Workload
from tests.shardwright import own_transformers
from tests.shardwright.test_cli import shardwright

WIDTH = 16


class Layer(nn.Module):
    def __init__(self, *, mixes: bool) -> None:
        super().__init__()
        self.norm, self.mixes = nn.LayerNorm(WIDTH), mixes
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x - x.mean(1, keepdim=True) if self.mixes else x
        return x + self.mlp(self.norm(x))


class Model(nn.Module):
    def __init__(self, *, mixes: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(mixes=mixes) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def of_each_token() -> tuple[nn.Module, tuple[torch.Tensor], Any, Any, int]:
    x = torch.randn(2, 8, WIDTH)
    return Model(mixes=False), (x,), x, F.mse_loss, 8


def of_all_tokens() -> tuple[nn.Module, tuple[torch.Tensor], Any, Any, int]:
    x = torch.randn(2, 8, WIDTH)
    return Model(mixes=True), (x,), x, F.mse_loss, 8


ASKED = ("--on", "2xh100-sxm", "--tp", "2", "--global-batch", "8", "--sequence-parallel")


def test_ranks_share_the_tokens_of_an_own_module(tmp_path: Path) -> None:
    """It was refused with every tp: its first layer has no argument but the tokens."""
    path = tmp_path / "plan.json"
    done = shardwright("plan", f"{__name__}:of_each_token", *ASKED, "-o", str(path))
    assert done.returncode == 0, done.stderr
    plan = read_plan_file(path).plan
    assert plan is not None
    assert plan.sequence_parallel
    assert ("layers.0.mlp.0", "gather_tokens 0") in plan.tensor_parallel


def test_blocks_that_need_all_tokens_are_named() -> None:
    done = shardwright("plan", f"{__name__}:of_all_tokens", *ASKED)
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "--sequence-parallel cannot be used for" in said
    assert "`mean` of layers.0 needs other tokens than the rank's" in said


@pytest.mark.parametrize("flag", ["--optimizer-offload", "--local-steps=8"])
def test_other_options_of_layouts_are_still_refused(flag: str) -> None:
    done = shardwright("plan", f"{__name__}:of_each_token", *ASKED, flag)
    assert done.returncode == 2
    assert f"{flag.partition('=')[0]} needs --stack" in " ".join(done.stderr.split())


def test_a_model_that_is_traced_so_in_python() -> None:
    """It ended in an error about the rules of the plan."""
    work = Workload(global_batch=8, sequence_length=128, precision="fp32")
    given = {"sequence_length": 128, "precision": "fp32", "tp_degrees": (1, 2)}
    traced = python_plan.trace("tiny-llama-demo", sequence_parallel=True, **given)
    answer = python_plan.plan(traced, "2xh100-sxm", work, tp=2)
    assert isinstance(answer, PlanFile)
    assert answer.plan is not None
    assert answer.plan.sequence_parallel
    layouts = python_plan.plan(
        "tiny-llama-demo", "2xh100-sxm", work, stack="torch", tp=2, sequence_parallel=True
    )
    assert isinstance(layouts, LayoutFile)
    assert layouts.chosen is not None
    assert layouts.chosen.prediction.step_time_s.value == answer.step_time_s
    named = python_plan.plan("tiny-llama-demo", "2xh100-sxm", work, tp=2, sequence_parallel=True)
    assert isinstance(named, PlanFile)
    assert named.plan == answer.plan
    whole = python_plan.trace("tiny-llama-demo", **given)
    with pytest.raises(InputError, match=r"sequence_parallel=True: .* was traced without"):
        python_plan.plan(whole, "2xh100-sxm", work, tp=2, sequence_parallel=True)
    with pytest.raises(InputError, match="with sequence parallelism, and the model was traced oth"):
        runnable_answer(layouts, get_cluster("2xh100-sxm"), whole)


def test_a_name_that_cannot_share_its_tokens_is_refused_before_the_search() -> None:
    """`plan` of the name answered with a plan that `predict` then refused."""
    work = Workload(global_batch=16, sequence_length=512)
    options = {"stack": "torch", "tp": 2, "sequence_parallel": True}
    with pytest.raises(InputError, match="is not possible: `view` of model"):
        python_plan.plan("mixtral-8x7b", "1x8xh100-sxm", work, **options)
    odd = Workload(global_batch=16, sequence_length=129)
    with pytest.raises(InputError, match=r"129 tokens with --sequence-parallel, evenly"):
        python_plan.plan("tiny-llama-demo", "2xh100-sxm", odd, **options)


def test_alternatives_with_and_without_shared_tokens_run_by_their_own_rules() -> None:
    """The search decides on both. Such an answer ended in an error about the rules of the plan."""
    model, on = "tests/equality/small_qwen.json", "1x8xh100-sxm"
    work = Workload(global_batch=16, sequence_length=512)
    answer = python_plan.plan(model, on, work, stack="torch", tp=2)
    assert isinstance(answer, LayoutFile)
    assert answer.chosen is not None
    choices = (answer.chosen, *answer.alternatives)
    assert {each.run.sequence_parallel for each in choices} == {False, True}
    made = runnable_answer(answer, get_cluster(on))
    assert made.plan is not None
    plans = (made.plan, *(each.plan for each in made.alternatives))
    assert [plan.sequence_parallel for plan in plans] == [
        each.run.sequence_parallel for each in choices
    ]
    for plan in plans:
        assert has_shared_tokens(plan.tensor_parallel) == plan.sequence_parallel
    # Of a model that was traced one way, only plans of that way remain.
    shares = answer.chosen.run.sequence_parallel
    given = {"sequence_length": 512, "precision": "bf16", "tp_degrees": (1, 2)}
    traced = python_plan.trace(model, sequence_parallel=shares, **given)
    alone = runnable_answer(answer, get_cluster(on), traced)
    assert alone.plan == made.plan
    assert alone.alternatives == tuple(
        each for each in made.alternatives if each.plan.sequence_parallel == shares
    )


@pytest.mark.parametrize(("module", "whole"), [("like_gpt2", False), ("written", True)])
def test_layouts_of_a_module_share_tokens_only_if_its_blocks_can(module: str, whole: bool) -> None:
    """The mask of `written` is as long as the tokens that its layers get."""
    model = f"{own_transformers.__name__}:{module}"
    assert described_of(model, None, runs_here=True).figures.whole_tokens is whole
