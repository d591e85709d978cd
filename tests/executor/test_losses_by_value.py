"""Losses that values decide are traced by expectation and run; what is not finite is placed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import shardwright
from profiles.document import write_document
from profiles.errors import InputError, RunError
from profiles.model.loaders import resolve_model
from profiles.model.tracing.trace import trace_graph
from simulator.values.plan import PLAN_SCHEMA, Plan
from simulator.values.plan_file import PlanFile
from simulator.values.workload import Workload
from tests.executor.cases import every_block_a_stage, make_plan, run_job
from tests.executor.losses_by_value import BY_VALUE
from tests.executor.one_process import worst_error
from tests.executor.processes import train

_WORK = Workload(global_batch=8, sequence_length=1, precision="fp32", counted_in="samples")


def _slow(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.slow)


def _answer(name: str) -> PlanFile:
    return shardwright.plan(
        shardwright.trace(
            f"tests.executor.losses_by_value:{name}", precision="fp32", tp_degrees=(1,)
        ),
        "1x2xa100-sxm-40gb",
        _WORK,
        pp=2,
        schedule="1f1b",
        micro_batch=2,
    )


def _plan(name: str) -> Plan:
    plan = _answer(name).plan
    assert plan is not None
    return plan


@pytest.mark.parametrize("name", [*map(_slow, BY_VALUE[:-1]), BY_VALUE[-1]])
def test_losses_by_value_are_planned_said_and_run(name: str) -> None:
    answer = _answer(name)
    assert any("taken as expected in Linear" in said for said in answer.assumptions)
    assert answer.plan is not None
    assert worst_error(answer.plan) <= 1e-5


def test_what_is_shaped_by_values_crosses_no_cut() -> None:
    """A pipeline's messages have one size."""
    plan = _plan("pruned")
    assert plan.block_entries == ("", "layers.1")
    assert worst_error(plan) <= 1e-5


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "replay_zoo:skipped",
            r"a number that its code draws .* decides which of its blocks run",
        ),
        (
            "replay_zoo:asked",
            r"value decides in the forward of the model which of its blocks",
        ),
        ("gradient_zoo:averaged", r"the weight slow\.0\.norm\.weight, which its forward changes"),
        ("gradient_zoo:clipped", r"the weight layers\.0\.down\.weight, which its forward changes"),
        ("gradient_zoo:transformed", r"layers\.0 is called inside a transform of torch\.func"),
        ("replay_zoo:forwarded", r"layers\.0 is never called as a module"),
        ("replay_zoo:sharing", r"layers\.0 changes a list or dictionary that it is given"),
        ("own_backward:function", r"the model applies the autograd function \S+Cubed between its"),
        ("own_backward:detached", r"the autograd function \S+own_backward._Run between its blocks"),
        ("own_backward:reentrant", r"layers\.2 is called again in the backward"),
        ("own_backward:kept", r"layers\.0 is called again in the backward \(leave out torch"),
        (
            "replay_zoo:popping",
            r"up\.0 changes a list or dictionary .* given.*return what it adds",
        ),
    ],
)
def test_what_a_stage_cannot_follow_is_not_cut(name: str, why: str) -> None:
    spec = resolve_model(f"tests.executor.{name}")
    graph = trace_graph(spec, micro_batch=2, sequence_length=1, dtype="float32", target="cpu")
    assert len(graph.chain) == 1
    assert re.search(why, graph.why_not_cuttable)


@pytest.mark.parametrize(("name", "assumed"), [("halting", True), ("checking", False)])
def test_truth_values_that_decide_inside_a_block_are_known(name: str, assumed: bool) -> None:
    spec = resolve_model(f"tests.executor.replay_zoo:{name}")
    graph = trace_graph(spec, micro_batch=2, sequence_length=1, dtype="float32", target="cpu")
    assert [b.assumed_values for b in graph.blocks] == [False, assumed, assumed, False]


def test_why_a_model_is_not_cut_is_said_where_a_pipeline_is_asked_for() -> None:
    traced = shardwright.trace(
        "tests.executor.own_backward:kept", precision="fp32", tp_degrees=(1,)
    )
    with pytest.raises(InputError, match=r"leave out torch\.utils\.checkpoint"):
        shardwright.plan(traced, "1x2xa100-sxm-40gb", _WORK, pp=2)


def test_what_a_layer_keeps_for_others_stays_in_its_stage() -> None:
    """The trace failed, because skipped layers kept nothing, and another stage would."""
    plan = every_block_a_stage("tests.executor.replay_zoo:keeping", 3)
    assert plan.block_entries == ("", "layers.0")
    assert worst_error(plan) <= 1e-5


def test_layers_that_clamp_their_own_weights_are_cut_and_have_replicas(tmp_path: Path) -> None:
    """As Gemma 3n's: it was one block and one replica. A write by code between the blocks is still
    one block: another stage would not see it."""
    model = "tests.executor.gradient_zoo:clamped"
    plan = every_block_a_stage(model, 3)
    assert plan.degrees.pp == 3
    assert worst_error(plan) <= 1e-5
    copies = [make_plan(model, plan.block_entries, dp=2, zero_stage=zero) for zero in (0, 2)]
    results = run_job([(f"{copy.zero_stage}", copy) for copy in copies], 2, tmp_path)
    assert [result["worst"] <= 1e-5 for result in results] == [True, True]
    traced = shardwright.trace(model, precision="fp32", tp_degrees=(1,))
    with pytest.raises(InputError, match=r"--zero 3: the forward clamps .*; use --zero 0,1,2"):
        shardwright.plan(traced, "1x2xa100-sxm-40gb", _WORK, zero=3)
    answer = shardwright.plan(traced, "1x2xa100-sxm-40gb", _WORK, dp=2)
    assert any("ZeRO is at most 2" in said for said in answer.assumptions)
    assert answer.plan is not None
    by_hand = replace(answer.plan, zero_stage=3)
    with pytest.raises(InputError, match="zero_stage=3: the forward clamps"):
        shardwright.predict(by_hand, traced, "1x2xa100-sxm-40gb")


@pytest.mark.parametrize("name", ["asking", _slow("borrowing"), _slow("recasting")])
def test_questions_that_decide_nothing_and_weights_of_others_are_cut(name: str) -> None:
    """Whether inputs are valid, whether a mask hides anything; a head that reads the stem, and
    one that is moved to the type that it has."""
    plan = every_block_a_stage(f"tests.executor.replay_zoo:{name}", 3)
    assert plan.degrees.pp == 3
    assert worst_error(plan) <= 1e-5


def test_values_may_decide_inside_a_block() -> None:
    routed = shardwright.trace(
        "tests.executor.weight_zoo:routed", precision="fp32", tp_degrees=(1,)
    )
    assert len(routed.at(2).chain) == 5


def test_replicas_that_do_not_run_alike(tmp_path: Path) -> None:
    """Rows go to different experts: what each replica trains must not be summed with another's.
    Layers are left out at random, or a weight is read outside its layer, where it is sharded.
    Layers that are called several times send the gradients of all calls at once."""
    zoo = "tests.executor"
    asked: list[tuple[str, dict[str, Any]]] = [
        ("replay_zoo:one_each", {"zero_stage": 0}),
        ("replay_zoo:one_each", {"zero_stage": 1, "precision": "bf16"}),
        ("replay_zoo:one_each", {"zero_stage": 3}),
        ("replay_zoo:skipped", {"zero_stage": 1}),
        ("weight_zoo:reread", {"zero_stage": 3}),
        ("weight_zoo:compared", {"zero_stage": 1, "precision": "bf16"}),
        ("weight_zoo:compared", {"zero_stage": 3}),
    ]
    layers = {
        "weight_zoo:reread": ("", "layers.0", "layers.1", "codes"),
        "weight_zoo:compared": ("", *(f"tower.layers.{i}" for i in range(3)), "tower.out"),
    }
    cases = []
    for name, more in asked:
        entries = layers.get(name, ("",))
        plan = make_plan(f"{zoo}.{name}", entries, dp=2, micro_batches=2, **more)
        cases.append((f"{name} {more}", plan))
    results = run_job(cases, 2, tmp_path)
    assert len(results) == len(cases), results[-1]
    for result in results:
        assert result["worst"] <= 1e-5, result


def test_targets_may_hold_constants_of_the_loss(tmp_path: Path) -> None:
    one = replace(_plan("weighted"), micro_batch=8)
    cases = [("pipeline", _plan("weighted")), ("one micro-batch", one)]
    results = run_job(cases, 2, tmp_path)
    assert len(results) == len(cases), results[-1]
    for result in results:
        assert result["worst"] <= 1e-5, result


def _written(plan: Plan, folder: Path) -> Path:
    path = folder / "plan.json"
    answer = PlanFile(status="feasible", search_time_s=0.0, cells_considered=1, plan=plan)
    write_document(path, answer, schema=PLAN_SCHEMA)
    return path


def _folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


@pytest.mark.parametrize(
    ("name", "what"),
    [
        pytest.param("breaks_forward", "the output of layers.2", marks=pytest.mark.slow),
        ("breaks_backward", "the backward of layers.2"),
    ],
)
def test_what_is_not_finite_is_placed(name: str, what: str, tmp_path: Path) -> None:
    """In the first step, on the rank that holds the layer."""
    plan = _plan(name)
    path = _written(plan, tmp_path)
    block = plan.block_entries.index("layers.2")
    (rank,) = (
        stage for stage, cut in enumerate(plan.stages) if cut.first_block <= block < cut.last_block
    )
    measured = train(path, "--steps=1", processes=2, folder=_folder(tmp_path, "run"))
    assert measured.not_finite.startswith(f"step 1, rank {rank}: {what}")
    assert measured.steps_without_finite_loss == 1
    if name == "breaks_backward":  # the check of gradients is refused the same way for both
        with pytest.raises(RunError, match=rf"nothing to compare \(step 1, rank {rank}: {what}"):
            train(path, "--steps=1", "--check", processes=2, folder=_folder(tmp_path, "check"))
