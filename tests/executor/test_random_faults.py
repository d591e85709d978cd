"""What random modules brought to light, each with the smallest module that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import shardwright
from executor.replay.wire import answering, sent, taken, wire_form
from profiles.errors import InputError
from simulator.values.plan import Recompute
from simulator.values.workload import Workload
from tests.executor.cases import make_plan, run_job
from tests.executor.one_process import worst_error
from tests.executor.random_modules import Recipe

_TOLERANCE = 1e-5  # relative error of any gradient
_WORK = Workload(global_batch=8, sequence_length=1, precision="fp32", counted_in="samples")


def _recipe(layers: str, **words: str) -> Recipe:
    plain = {
        "join": "chain",
        "held": "list",
        "beside": "none",
        "frozen": "none",
        "shared": "none",
        "output": "tensor",
        "loss": "entropy",
        "inputs": "tuple",
    }
    return Recipe(**(plain | words), layers=tuple(layers.split()))


def _plan(recipe: Recipe, schedule: str, **pins: object) -> shardwright.Plan:
    answer = shardwright.plan(
        shardwright.trace(recipe.model, precision="fp32", tp_degrees=(1,)),
        "1x2xa100-sxm-40gb",
        _WORK,
        schedule=schedule,
        micro_batch=2,
        **pins,  # type: ignore[arg-type] # a mix of pins
    )
    assert answer.plan is not None
    return answer.plan


@pytest.mark.parametrize(
    "recipe",
    [
        _recipe("mlp mlp linear mlp", beside="index"),
        pytest.param(_recipe("mlp mlp linear mlp", beside="flags"), marks=pytest.mark.slow),
        pytest.param(_recipe("mlp mlp linear mlp", beside="count"), marks=pytest.mark.slow),
        pytest.param(_recipe("mlp mlp linear mlp", beside="detached"), marks=pytest.mark.slow),
        pytest.param(
            _recipe("mlp linear mlp", join="state", beside="places"), marks=pytest.mark.slow
        ),
        _recipe("mlp mlp linear mlp", frozen="most"),
        pytest.param(
            _recipe("mlp linear mlp", frozen="teacher", output="nested"), marks=pytest.mark.slow
        ),
        _recipe("mlp linear mlp", held="nested", shared="every"),
        pytest.param(_recipe("mlp noisy mlp noisy"), marks=pytest.mark.slow),
    ],
    ids=lambda recipe: f"{recipe.beside}-{recipe.frozen}-{recipe.shared}",
)
def test_stages_compute_what_the_module_computes(recipe: Recipe) -> None:
    assert worst_error(_plan(recipe, "1f1b", pp=2)) <= _TOLERANCE


@pytest.mark.slow
def test_what_needs_processes_to_show(tmp_path: Path) -> None:
    """Draws of another rank; a rank that trains nothing, and one with no share of the update; what
    a module checkpoints itself, under a split backward; a convolution's weight in two stages, one
    of which makes its gradient in W; a bias whose gradient is nothing but rounding."""
    wanted = [
        ("noisy", _recipe("noisy mlp noisy"), "1f1b", {"pp": 2}),
        ("frozen", _recipe("mlp mlp mlp linear", frozen="most"), "gpipe", {"pp": 2}),
        ("few", _recipe("mlp", frozen="most"), "none", {"zero": 1}),
        ("again", _recipe("again mlp again"), "zb-h1", {"pp": 2}),
        ("tied", _recipe("mlp linear conv2d linear mlp", join="twice"), "dualpipev", {"pp": 2}),
        ("rounding", _recipe("batchnorm mlp counted batchnorm2d"), "1f1b", {"pp": 2}),
        ("index", _recipe("mlp mlp linear mlp", beside="index"), "zbv", {"pp": 2}),
    ]
    cases = [(name, _plan(recipe, schedule, **pins)) for name, recipe, schedule, pins in wanted]
    entries = ("", "layers.0", "layers.1", "head")
    written = make_plan("tests.executor.remembering_zoo:written", entries, dp=2, zero_stage=3)
    cases.append(("written", written))
    results = run_job(cases, 2, tmp_path)
    assert [r["name"] for r in results] == [name for name, _ in cases], results[-1]
    for result in results:
        assert result["worst"] <= _TOLERANCE, result


def test_a_buffer_that_is_changed_and_read_stays_in_one_stage_and_replica() -> None:
    recipe = _recipe("mlp averaged mlp", join="twice")
    traced = shardwright.trace(recipe.model, precision="fp32", tp_degrees=(1,))
    graph = traced.at(2)
    assert graph.state == ("the buffer layers.1.mean",)
    # Both rounds use it: what was a block between them, layers.2, is none.
    assert [ref.entry for ref in graph.chain] == ["", "layers.0", "layers.1", "head"]
    answer = shardwright.plan(traced, "1x2xa100-sxm-40gb", _WORK, micro_batch=2)
    assert answer.plan is not None
    assert answer.plan.degrees.dp == 1
    assert any("layers.1.mean" in said for said in answer.assumptions)
    with pytest.raises(InputError, match=r"changes the buffer layers\.1\.mean.*leave it out"):
        shardwright.plan(traced, "1x2xa100-sxm-40gb", _WORK, dp=2)
    with pytest.raises(InputError, match=r"at most 4 devices .*\(tp x pp\), but --on names 8"):
        shardwright.plan(traced, "1x8xa100-sxm-40gb", _WORK)
    assert worst_error(answer.plan) <= _TOLERANCE


def test_statistics_that_training_does_not_read_are_no_state() -> None:
    recipe = _recipe("batchnorm counted batchnorm2d", join="twice")
    assert shardwright.trace(recipe.model, precision="fp32", tp_degrees=(1,)).at(2).state == ()


def test_a_block_that_runs_again_finds_its_buffers_as_they_were(tmp_path: Path) -> None:
    recipe = _recipe("averaged mlp averaged mlp")
    plan = _plan(recipe, "1f1b", pp=2, recompute="full")
    assert {kind for stage in plan.stages for kind in stage.recompute} == {Recompute.FULL}
    (result,) = run_job([("again", plan)], 2, tmp_path)
    assert result["worst"] <= _TOLERANCE, result


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([[-1, 2**62], [0, -(2**63)]]),
        torch.tensor([-1, 2**31 - 1], dtype=torch.int32),
        torch.tensor([-(2**15), 7], dtype=torch.int16),
        torch.tensor([0, 255], dtype=torch.uint8),
        torch.tensor([-128, 127], dtype=torch.int8),
        torch.tensor([[True], [False]]),
        torch.tensor([1 + 2j, -3j]),
        torch.tensor(5),
    ],
    ids=lambda x: f"{x.dtype}".removeprefix("torch."),
)
def test_every_kind_of_tensor_crosses_unchanged(x: torch.Tensor) -> None:
    wire = sent(x)
    assert (tuple(wire.shape), wire.dtype) == wire_form(tuple(x.shape), x.dtype)
    assert wire.is_floating_point()
    back = taken(wire.clone(), x.dtype, requires_grad=False)
    assert back.dtype == x.dtype
    assert torch.equal(back, x)


def test_what_has_no_gradient_gets_zeros() -> None:
    trained, quiet = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    (out,) = answering([trained * 2], [quiet])
    out.sum().backward()
    assert trained.grad is not None
    assert quiet.grad is not None
    assert trained.grad.tolist() == [2, 2]
    assert quiet.grad.tolist() == [0, 0, 0]
    (alone,) = answering([torch.ones(2)], [])
    assert alone.requires_grad
