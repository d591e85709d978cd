"""Random modules are planned with every schedule and run as the unsplit module does, or the planner
says why not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

import shardwright
from profiles.errors import ShardwrightError
from profiles.model.tracing.traced import TracedModel
from simulator.values.plan import Plan
from simulator.values.plan_file import PlanFile
from simulator.values.runnable import runnable_schedules
from simulator.values.workload import Workload
from tests.executor.cases import run_job
from tests.executor.random_layers import KINDS
from tests.executor.random_modules import Recipe, recipe_named, recipes

_TOLERANCE = 1e-5  # relative error of any gradient
_GAP, _SECONDS = 0.05, 20.0  # proven, or a gap under 5 %, in 20 s
_MODULES, _AT_ONCE = 400, 10
_LAYOUTS = tuple(product((2, 3), runnable_schedules()))
_WORK = Workload(global_batch=12, sequence_length=1, precision="fp32", counted_in="samples")


def _drawn(count: int) -> list[Recipe]:
    """So many recipes, the same in every run."""
    found: dict[Recipe, None] = {}

    @settings(
        max_examples=2 * count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(recipes())
    def draw(recipe: Recipe) -> None:
        found[recipe] = None

    draw()
    assert len(found) >= count
    return list(found)[:count]


def _traced(recipe: Recipe) -> TracedModel:
    return shardwright.trace(recipe.model, precision="fp32", tp_degrees=(1,))


def _planned(traced: TracedModel, ranks: int, schedule: str, zero: int) -> PlanFile | str:
    """The answer, or why there is none."""
    pins = {"zero": zero} if schedule == "none" else {"pp": ranks}
    try:
        return shardwright.plan(
            traced,
            f"1x{ranks}xa100-sxm-40gb",
            _WORK,
            schedule=schedule,
            micro_batch=2,
            time_limit_s=_SECONDS,
            **pins,
        )
    except ShardwrightError as why:
        return str(why)


def _cases(chosen: Iterator[tuple[int, Recipe, int, str]]) -> tuple[list[tuple[str, Plan]], int]:
    """Named plans of modules, ranks and schedules, and how many were refused with a reason."""
    traced: dict[Recipe, TracedModel] = {}
    cases, refused = [], 0
    for number, recipe, ranks, schedule in chosen:
        if recipe not in traced:
            traced[recipe] = _traced(recipe)
        answer = _planned(traced[recipe], ranks, schedule, number % 4)
        if isinstance(answer, str):
            assert len(answer) > 40, answer  # a sentence
            refused += 1
            continue
        assert answer.plan is not None, (recipe.model, ranks, schedule, answer.status)
        cases.append((f"{recipe.model} on {ranks} with {schedule}", answer.plan))
    return cases, refused


def _run(cases: list[tuple[str, Plan]], folder: Path) -> None:
    for ranks in (2, 3):
        own = [(name, plan) for name, plan in cases if plan.degrees.num_devices == ranks]
        results = run_job(own, ranks, folder) if own else []
        for result in results:
            assert not result.get("error"), result
            assert result["worst"] <= _TOLERANCE, result
        assert len(results) == len(own)


def test_a_recipe_is_found_again_by_its_name() -> None:
    for recipe in _drawn(20):
        assert recipe_named(recipe.model.partition(":")[2]) == recipe


def test_there_are_forty_kinds_of_op() -> None:
    assert len(KINDS) >= 40


@pytest.mark.slow
def test_random_modules_run_as_planned(tmp_path: Path) -> None:
    """A handful; all of them are the study of make validate. Every schedule comes up, on two
    ranks or on three."""
    modules = _drawn(60)[4::14]
    layouts = zip(cycle((2, 3)), runnable_schedules(), strict=False)
    chosen = (
        (number, modules[number % len(modules)], *layout) for number, layout in enumerate(layouts)
    )
    cases, refused = _cases(chosen)
    assert len(cases) > refused
    _run(cases, tmp_path)


@pytest.mark.slow
def test_every_random_module_runs_with_every_schedule(tmp_path: Path) -> None:
    modules = _drawn(_MODULES)
    for start in range(0, _MODULES, _AT_ONCE):
        part = modules[start : start + _AT_ONCE]
        chosen = (
            (start + number, recipe, *layout)
            for number, recipe in enumerate(part)
            for layout in _LAYOUTS
        )
        _run(_cases(chosen)[0], tmp_path)


@pytest.mark.slow
def test_plans_of_random_modules_are_proven_or_nearly() -> None:
    wide = []
    for number, recipe in enumerate(_drawn(_MODULES)):
        traced = _traced(recipe)
        for ranks, schedule in _LAYOUTS:
            answer = _planned(traced, ranks, schedule, number % 4)
            if not isinstance(answer, str) and answer.gap > _GAP:
                wide.append((recipe.model, ranks, schedule, answer.gap))
            if not isinstance(answer, str):
                assert answer.search_time_s <= 1.5 * _SECONDS, (recipe.model, ranks, schedule)
    assert wide == []
