"""Layouts of our own executor as plans of the model's blocks."""

from dataclasses import replace

import pytest

from planner.layout.plan_of_layout import (
    executable_plan,
    first_layer,
    plan_of_layouts,
    run_of_plan,
)
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.model.loaders import resolve_model
from profiles.model.tracing.traced import trace_model
from simulator.memory.footprint import footprint
from simulator.values.plan import Recompute
from simulator.values.workload import Workload
from tests.planner.layout.asked import question, seconds_of, solved

MODEL, BATCH, SEQUENCE = "tiny-llama-demo", 32, 1024
STACK = "torch"


@pytest.fixture(scope="module")
def traced():
    return trace_model(resolve_model(MODEL), sequence_length=SEQUENCE, dtype="bfloat16")


def planned(traced, on="2x8xh100-sxm", **pins):
    asked = question(MODEL, on, STACK, BATCH, SEQUENCE, **pins)
    work = Workload(global_batch=BATCH, sequence_length=SEQUENCE)
    answer = solved(asked)
    return answer, plan_of_layouts(answer, {False: traced}, asked.cluster, work)


def test_layers_are_the_blocks_of_one_list():
    entries = ("", "model.layers.0", "model.layers.1", "model.layers.2", "model.norm")
    assert first_layer(entries, 3) == 1
    assert first_layer(("h.0", "h.1"), 2) == 0
    # A second list, a gap, and a list that is too short are no such run.
    for wrong in (("a.0", "b.1"), ("a.0", "a.2"), ("a.0", "norm")):
        with pytest.raises(InputError, match="not 2 layers of one module list"):
            first_layer(wrong, 2)


def test_stages_have_the_layers_of_the_layout(traced):
    # 8 layers with embedding and head on 4 stages: 2 each, the first with the embedding's block,
    # the last with the norm's and the head's.
    _, found = planned(traced, pp=(4,), schedule=("1f1b",), tp=(1,))
    ends = [stage.last_block for stage in found.plan.stages]
    assert found.plan.block_entries[0] == ""
    assert ends == [3, 5, 7, len(found.plan.block_entries)]


def test_the_plan_file_tells_the_layouts_numbers(traced):
    answer, found = planned(traced, pp=(2,))
    best = answer.chosen.prediction
    assert found.step_time_s == pytest.approx(best.step_time_s.value, rel=1e-9)
    assert found.mfu == best.mfu.value
    assert found.peak_memory_bytes == best.peak.value
    assert (found.bound, found.gap, found.status) == (answer.bound, answer.gap, answer.status)
    # Every rank's parts add up to what it allocates.
    ranks = footprint(answer.chosen.run).ranks
    for mine, theirs in zip(found.prediction.ranks, ranks, strict=True):
        assert mine.peak_bytes == pytest.approx(theirs.peak_bytes)
        assert mine.required_bytes == theirs.required_bytes
        assert mine.reserved_bytes == theirs.reserved_bytes
    assert abs(found.prediction.timeline_gap) < 0.02
    assert len(found.alternatives) == len(answer.alternatives)


def test_recomputed_layers_are_the_first_of_each_stage(traced):
    answer, _ = planned(traced, pp=(2,), dp=(8,), tp=(1,), schedule=("1f1b",))
    run = replace(answer.chosen.run, recompute="full", recompute_layers=1)
    work = Workload(global_batch=BATCH, sequence_length=SEQUENCE)
    plan = executable_plan(run, traced, get_cluster("2x8xh100-sxm"), work)
    kinds = [kind for stage in plan.stages for kind in stage.recompute]
    again = [at for at, kind in enumerate(kinds) if kind is Recompute.FULL]
    assert again == [1, 5]
    whole = executable_plan(
        replace(run, recompute_layers=0), traced, get_cluster("2x8xh100-sxm"), work
    )
    kinds = [kind for stage in whole.stages for kind in stage.recompute]
    assert [at for at, kind in enumerate(kinds) if kind is Recompute.FULL] == list(range(1, 9))


@pytest.mark.parametrize(
    ("recompute", "layers"), [("none", 0), ("attention", 0), ("full", 0), ("full", 1)]
)
def test_a_plan_is_read_back_as_a_layout_of_the_same_step_and_memory(traced, recompute, layers):
    asked = question(MODEL, "2x8xh100-sxm", STACK, BATCH, SEQUENCE, pp=(2,), tp=(1,))
    run = replace(solved(asked).chosen.run, recompute=recompute, recompute_layers=layers)
    work = Workload(global_batch=BATCH, sequence_length=SEQUENCE)
    plan = executable_plan(run, traced, asked.cluster, work)
    again = run_of_plan(plan, asked.model, asked.cluster)
    assert seconds_of([again]) == pytest.approx(seconds_of([run]))
    assert footprint(again).needed_bytes == pytest.approx(footprint(run).needed_bytes)
    # Recomputation of other layers than the first of each stage is no layout.
    stages = tuple(replace(stage, recompute=stage.recompute[::-1]) for stage in plan.stages)
    moved = replace(plan, stages=stages)
    assert (run_of_plan(moved, asked.model, asked.cluster) is None) == (recompute != "none")


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "zbv", "interleaved"])
@pytest.mark.parametrize(("pp", "tp"), [(1, 2), (2, 1), (4, 2), (8, 1)])
def test_any_layout_is_a_plan_of_all_blocks(traced, pp, tp, schedule):
    try:
        _, found = planned(traced, pp=(pp,), tp=(tp,), schedule=(schedule,) if pp > 1 else None)
    except InputError:
        return  # the pins leave no layout
    if found.plan is None:
        return
    assert found.plan.stages[-1].last_block == len(found.plan.block_entries)
    total = sum(part.time_s for part in found.prediction.components)
    assert total == pytest.approx(found.step_time_s)
    assert len(found.prediction.stages) == len(found.plan.stages)
