"""A schedule by one function, and a framework by one file: planned, priced and simulated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from planner.axes import Axes
from planner.blocks.answer import SearchOptions
from planner.blocks.block_search import search
from planner.layout.layout_question import LayoutQuestion, LayoutSolver, context_of
from planner.layout.prices import RECOMPUTE, SCHEDULES, legal_layouts
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_cluster
from simulator.memory.footprint import footprint
from simulator.schedules import schedule as registry
from simulator.schedules.action import backward, forward
from simulator.schedules.in_flight import most_in_flight
from simulator.schedules.schedule import Rows, ScheduleKind, ScheduleOptions, register
from simulator.training_run.framework.framework import load_stack
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.step_time import price_runs
from simulator.values.runnable import runnable_schedules
from simulator.values.workload import Workload
from tests.planner.hand_made_model import HandMadeModel
from tests.planner.layout.asked import question as small_question


@pytest.fixture
def late() -> Iterator[str]:
    """1F1B that begins one micro-batch later than it could."""
    kind = ScheduleKind(name="one-late", words=("late",))

    @register(kind)
    def one_late(num_ranks: int, num_microbatches: int, options: ScheduleOptions) -> Rows:
        rows = []
        for rank in range(num_ranks):
            ahead = min(num_microbatches, num_ranks - rank + 1)
            row = [forward(rank, m) for m in range(ahead)]
            for m in range(num_microbatches):
                row.append(backward(rank, m))
                row += [forward(rank, m + ahead)] if m + ahead < num_microbatches else []
            rows.append(tuple(row))
        return tuple(rows)

    yield kind.name
    for table in (registry._KINDS, registry._MAKERS):
        table.pop(kind.name)
    registry._PIPELINES.remove(kind.name)


def question(stack: str, **space: object) -> LayoutQuestion:
    asked: LayoutQuestion = small_question(stack=stack, on="1x8xh100-sxm", **space)
    return asked


def planned(asked: LayoutQuestion) -> TrainingRun:
    outcome = LayoutSolver(clock=lambda: 0.0).search(asked)
    return outcome.layouts[0].run


def test_a_schedule_is_one_function(late: str) -> None:
    run = planned(question("megatron-core", schedule=(late,), pp=(4,), tp=(2,)))
    assert run.schedule == late
    plain = replace(run, schedule="1f1b")
    # One micro-batch more in flight, and no faster: counted and timed off its own actions.
    assert most_in_flight(late, 4, 32) == (5.0, 4.0, 3.0, 2.0)
    assert footprint(run).allocated_bytes > footprint(plain).allocated_bytes
    times = price_runs([run, plain]).parts.total_s
    assert times[0] == pytest.approx(times[1], rel=0.1)
    # The search over blocks proves its plans too, by their timelines.
    assert late in runnable_schedules()
    answer = search(
        HandMadeModel(6),
        get_cluster("2xh100-sxm"),
        Workload(global_batch=8, sequence_length=2048),
        space=Axes(schedule=(late,), pp=(2,)),
        stack=load_stack(),
        options=SearchOptions(clock=lambda: 0.0),
    )
    # Timelines of any order are searched, not proven.
    assert answer.plan is not None
    assert answer.plan.schedule == late
    assert answer.bound <= answer.step_time_s


MINE = """
schema = "shardwright/framework@1"
like = "megatron-core"
name = "mine"
date = "2026-11-22"
source = "a fork of Megatron-Core with zero-bubble pipelines, for this test"
names = ["mine"]
coefficients_of = "megatron-core"
[rules]
axes = ["pp", "dp"]
schedules = ["1f1b", "zb-h1"]
zero_stages = [1]
"""


def test_a_framework_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE, encoding="utf-8")
    run = planned(question(str(path), pp=(4,)))
    assert (run.stack, run.degrees.tp, run.degrees.pp, run.zero_stage) == (str(path), 1, 4, 1)
    assert run.schedule == "zb-h1"
    same = replace(run, stack="megatron-core")
    assert price_runs([run]).parts.total_s[0] == price_runs([same]).parts.total_s[0]
    assert footprint(run).needed_bytes == footprint(same).needed_bytes
    with pytest.raises(InputError, match="has no such axis"):
        legal_layouts(Axes(tp=(2,)), context_of(question(str(path)))[1])


def test_what_selective_means_is_the_frameworks() -> None:
    for stack, kind in (("torch", "attention"), ("torchtitan", "alternate")):
        for word in ("selective", kind):
            asked = question(stack, recompute=(word,))
            layouts = legal_layouts(asked.space, context_of(asked)[1])
            assert {RECOMPUTE[index] for index in layouts.recompute.tolist()} == {kind}
    asked = question("megatron-core", recompute=("attention",))
    assert asked.space.recompute == ("selective",)


def test_every_schedule_that_rows_may_name_is_planned() -> None:
    for name in ("dualpipe", "zb-1p", "zbv", "gpipe"):
        assert name in SCHEDULES
        assert planned(question("megatron-core", schedule=(name,), pp=(4,))).schedule == name
