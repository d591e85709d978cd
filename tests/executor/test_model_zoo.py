"""Models that nothing was tuned for: planned, run in stages, gradients as of the unsplit model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import shardwright
from executor.parallelize import without_shared_weights
from planner.axes import Axes
from profiles.errors import InputError, ModelError
from profiles.model.loaders import resolve_model
from shardwright import api
from simulator.values.workload import Workload
from tests.executor.cases import every_block_a_stage, make_plan, run_job
from tests.executor.config_zoo import ZOO, config_of
from tests.executor.module_zoo import FACTORIES
from tests.executor.one_process import stages_of, worst_error

_TOLERANCE = 1e-5  # relative error of any gradient
# Their loss is decided by values, or their image tower reads values: refused.
_REFUSED = {
    "detr": "matches boxes to objects",
}
# What passes where a bias stands before batch normalisation: it has no gradient but rounding, which
# was 1.5e-3 of the check's floor, a hundred-thousandth of the whole gradient's norm (2026-11-21).
_ROUNDING = {"segformer-pixels": 1e-2}
# One of each kind of structure; the slow tests run the whole zoo. Each had a fault of its own on
# 2026-11-21.
_CONFIGS = ("bart", "dbrx", "llava", "bigbird")
_MODULES = ("looped", "student", "normed", "settling", "joined")


def _path(name: str, folder: Path) -> str:
    if name in FACTORIES:
        return FACTORIES[name]
    path = folder / name / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(config_of(name)))
    return str(path)


@pytest.mark.parametrize("name", _CONFIGS + _MODULES)
def test_stages_compute_what_the_model_computes(name: str, tmp_path: Path) -> None:
    assert worst_error(every_block_a_stage(_path(name, tmp_path), 3)) <= _TOLERANCE


@pytest.mark.parametrize("name", _REFUSED)
def test_what_is_not_built_says_why_and_what_to_do(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=_REFUSED[name]) as refused:
        resolve_model(_path(name, tmp_path))
    assert "package.module:factory" in str(refused.value)


def test_frozen_layers_are_blocks_too(tmp_path: Path) -> None:
    """The teacher runs first and is frozen: a stage of it runs forward alone."""
    plan = every_block_a_stage(_path("student", tmp_path), 9)
    assert plan.block_entries[:2] == ("", "teacher.1")
    assert worst_error(plan) <= _TOLERANCE


def test_a_view_is_made_where_it_is_used_first_whatever_the_order() -> None:
    """The pooling goes behind layers that take a view which the model makes after it."""
    plan = every_block_a_stage(FACTORIES["pooled"], 2)
    order = ("", "tower.0", "tower.1", "layers.0", "layers.1", "pool", "layers.2", "head")
    assert set(plan.block_entries) == set(order)
    assert worst_error(replace(plan, block_entries=order)) <= _TOLERANCE


def test_units_with_shared_weights_are_left_to_the_stage() -> None:
    from torch import nn

    first, second, third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    layers = nn.ModuleList((first, second, third))
    assert without_shared_weights((first, second, third), layers) == (third,)
    # The second is in no unit: its weight is the stage's, and so is the first's.
    assert without_shared_weights((first, third), layers) == (third,)
    # One layer at two places is one unit.
    assert without_shared_weights((third,), nn.ModuleList((third, third))) == (third,)
    inner = nn.Linear(2, 2)  # one layer in two wrappers, of which one is a unit
    wrapped = nn.Sequential(inner)
    model = nn.ModuleList((wrapped, nn.Sequential(inner), third))
    assert without_shared_weights((wrapped, third), model) == (third,)


def test_a_stage_holds_what_its_code_reads_of_the_weights_that_stand_in_no_layer() -> None:
    """Each was held by every stage, with gradients that were summed and optimizer states. Nothing
    reads the last two of the first stage; a layer reads `hidden` unseen."""
    entries = ("", *(f"layers.{i}" for i in range(4)))
    plan = make_plan("tests.executor.tiny_models:loose", entries, pp=2, schedule="1f1b")
    held = [
        {name for name, _ in stage.model.named_parameters() if "layers" not in name}
        for stage in stages_of(plan)
    ]
    assert held == [
        {"stem.weight", "stem.bias", "positions", "scale", "hidden", "shifts.0", "unread"},
        {"head.weight", "head.bias", "scale", "hidden", "shifts.1", "frozen"},
    ]
    assert worst_error(plan) <= _TOLERANCE


def test_a_stage_does_not_hold_a_layer_for_a_weight_that_it_shares_with_its_own() -> None:
    """Four layers hold one projection. The first stage kept the last layer whole, with gradients
    and optimizer states, since that was taken for the projection's only owner."""
    entries = ("", *(f"layers.{i}" for i in range(4)), "scores")
    plan = make_plan("tests.executor.weight_zoo:tied", entries, pp=2, schedule="1f1b")
    first, last = (
        {name for name, _ in stage.model.named_parameters() if ".mlp." in name}
        for stage in stages_of(plan)
    )
    assert {name.split(".")[1] for name in first} == {"0", "1"}
    assert {name.split(".")[1] for name in last} == {"2", "3"}
    shared = (tuple(f"layers.{i}.shared.{key}" for i in range(4)) for key in ("weight", "bias"))
    tied = (("words.weight", "scores.weight"), *shared)
    assert worst_error(replace(plan, tied_parameters=tied)) <= _TOLERANCE


def test_a_stage_of_the_head_alone_knows_the_type_of_the_bodys_weights() -> None:
    """As XLNet's code asks for it: the stage failed with a StopIteration."""
    entries = ("", "body.layers.1", "body.layers.2", "head")
    source = "tests.executor.tiny_models:asks_for_type"
    plan = make_plan(source, entries, pp=2, vpp=2, schedule="interleaved")
    assert [(s.first_block, s.last_block) for s in plan.stages][-1] == (3, 4)
    assert worst_error(plan) <= _TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("pins", [{"pp": (2,)}, {"pp": (1,), "dp": (2,), "zero": (3,)}])
def test_the_whole_zoo_is_planned_and_runs_on_two_processes(
    pins: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    cases = []
    for name in (*(n for n in ZOO if n not in _REFUSED), *FACTORIES):
        model = _path(name, tmp_path)
        length = None if name in FACTORIES else 16  # a factory makes its own inputs
        traced = shardwright.trace(
            model, sequence_length=length, precision="fp32", tp_degrees=(1,), target="cpu"
        )
        question = (
            traced,
            shardwright.cluster("1x2xa100-sxm-40gb"),
            Workload(global_batch=8, sequence_length=traced.sequence_length, precision="fp32"),
        )
        space = Axes(tp=(1,), micro_batch=(2,), **pins)
        if "pp" in pins and pins["pp"] != (1,) and not traced.at(2, 1).cuttable:
            with pytest.raises(InputError, match="cannot be cut into stages"):
                api.plan(*question, space=space)
            continue
        if "dp" in pins and traced.at(2, 1).state:
            with pytest.raises(InputError, match="changes the buffer"):
                api.plan(*question, space=space)
            continue
        answer = api.plan(*question, space=space)
        assert answer.plan is not None, name
        cases.append((name, replace(answer.plan, model=model)))
    results = run_job(cases, 2, tmp_path)
    assert len(results) == len(cases), results[-1]
    for result in results:
        assert not result.get("error"), result
        assert result["worst"] <= _ROUNDING.get(result["name"], _TOLERANCE), result
