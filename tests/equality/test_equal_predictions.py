"""One plan has one prediction, by whichever way it is predicted.

Questions are drawn from a seed (`questions.py`); each plan is predicted by every route
(`routes.py`), and all numbers must be equal float for float, those of tables to their digits.
There is no exception.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from shardwright import api
from simulator.values.workload import Workload
from tests.equality import models, routes
from tests.equality.models import TOKENS
from tests.equality.questions import CachedAnswer, Kind, Question, answered_questions, traced_for
from tests.equality.routes import Difference, NotApplicable, Numbers, differences, in_the_answer

SEED = 20261124
FEW, MANY = 60, 500
Route = Callable[[CachedAnswer], Numbers]
_PRINTED_DIGITS = 6
_SHOWN = 12

ROUTES = {
    routes.of_the_answer: tuple(Kind),
    routes.of_its_plan: tuple(kind for kind in Kind if kind is not Kind.FRAMEWORK),
    routes.of_plan_and_model: tuple(kind for kind in Kind if kind is not Kind.FRAMEWORK),
    routes.of_the_file: tuple(Kind),
    routes.of_the_row: (Kind.FRAMEWORK, Kind.EXECUTOR),
}
"""The routes, each with the kinds of questions that it can predict."""

_TABLES = (routes.of_the_row,)


def _cases() -> list[object]:
    return [
        pytest.param(route, kind, id=f"{route.__name__}-{kind.name}".lower())
        for route, kinds in ROUTES.items()
        for kind in kinds
    ]


@functools.cache
def _answers(count: int) -> tuple[CachedAnswer, ...]:
    return tuple(answered_questions(SEED, count))


def _check(route: Route, kind: Kind, count: int) -> None:
    digits = _PRINTED_DIGITS if route in _TABLES else None
    found: list[Difference] = []
    compared = 0
    for answered in _answers(count):
        if answered.question.kind is not kind:
            continue
        try:
            theirs = route(answered)
        except NotApplicable:
            continue
        compared += 1
        name = str(answered.question)
        found += differences(name, in_the_answer(answered), theirs, digits=digits)
    assert compared, f"no question of {count} is predicted by {route.__name__}"
    assert not found, "\n".join([f"{len(found)} numbers differ", *map(str, found[:_SHOWN])])


@pytest.mark.parametrize(("route", "kind"), _cases())
def test_a_route_gives_the_numbers_of_the_answer(route: Route, kind: Kind) -> None:
    _check(route, kind, FEW)


@pytest.mark.slow
@pytest.mark.parametrize(("route", "kind"), _cases())
def test_of_many_questions_too(route: Route, kind: Kind) -> None:
    _check(route, kind, MANY)


@pytest.mark.parametrize(
    ("on", "precision"),
    [
        ("1xh100-sxm", "bf16"),
        ("1xrtx-3090", "fp32"),
        pytest.param("1xh100-sxm", "fp32", marks=pytest.mark.slow),
        pytest.param("1xrtx-3090", "bf16", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", ["wide", "alike", "tied", "unlike", "towers"])
def test_a_row_of_a_table_of_modules_gives_the_numbers_of_its_plan(
    name: str, on: str, precision: str
) -> None:
    """The run of a row is drawn too seldom: one device, one batch, nothing computed again."""
    kind = Kind.EXECUTOR if name == "wide" else Kind.BLOCKS
    question = Question(
        kind=kind,
        model=f"{models.__name__}:{name}",
        on=on,
        work=Workload(global_batch=16, sequence_length=TOKENS, precision=precision),
        pins={"tp": 1, "pp": 1, "zero": 0, "micro_batch": 16, "recompute": "none"},
    )
    model = question.model if kind is Kind.EXECUTOR else traced_for(question)
    answer = api.plan(model, question.cluster, question.work, **question.pins)
    answered = CachedAnswer(question=question, answer=answer)
    theirs = routes.of_the_module_row(answered)
    assert {"step_time_s low", "peak_memory_gib high"} <= set(theirs)
    found = differences(name, in_the_answer(answered), theirs, digits=_PRINTED_DIGITS)
    assert not found, "\n".join(map(str, found))


_CONFIG = str(Path(__file__).with_name("small_qwen.json"))
_WIDE = tuple(f"{models.__name__}:{name}" for name in ("wide", "wide_tied"))
_SHARES = {"sequence_parallel": True, "tp": 2}
_OFFLOADS = {"optimizer_offload": True}
_DRAWN_SELDOM = [
    (_CONFIG, "1x4xh100-sxm", None, {**_SHARES, "pp": 2, "schedule": "1f1b"}),
    (_CONFIG, "1x8xh100-sxm", "torch", _SHARES),
    ("llama-3.1-70b", "1x8xh100-sxm", "torch", _OFFLOADS),
    *(
        pytest.param(model, on, None, pins, marks=pytest.mark.slow)
        for model in (*_WIDE, _CONFIG, "tiny-llama-demo")
        for on in ("1x4xh100-sxm", "2x4xa100-sxm-80gb")
        for pins in (_SHARES, {**_SHARES, "pp": 2, "schedule": "1f1b", "micro_batch": 8})
    ),
    *(
        pytest.param(model, on, stack, pins, marks=pytest.mark.slow)
        for model, stack in (
            ("llama-3.1-70b", "torch"),
            ("mixtral-8x7b", "torch-fsdp"),
            ("mixtral-8x7b", "maxtext"),
        )
        for on, pins in (
            ("1x8xh100-sxm", _OFFLOADS),
            ("2x8xa100-sxm-80gb", {"activation_offload": (0.5,)}),
        )
    ),
]


@pytest.mark.parametrize(
    ("model", "on", "stack", "pins"),
    _DRAWN_SELDOM,
    ids=lambda value: Path(value).stem if isinstance(value, str) else None,
)
def test_shared_tokens_and_offload_have_one_prediction_too(
    model: str, on: str, stack: str | None, pins: dict[str, Any]
) -> None:
    """No question that is drawn allows them, and their alternatives may differ in them."""
    kind = Kind.FRAMEWORK if stack else Kind.EXECUTOR
    tokens = TOKENS if ":" in model else 512
    work = Workload(global_batch=16, sequence_length=tokens)
    question = Question(kind=kind, model=model, on=on, work=work, stack=stack, pins=pins)
    answer = api.plan(model, question.cluster, work, stack=stack, **pins)
    run = answer.chosen.run if stack else answer.plan
    assert run.optimizer_offload == ("optimizer_offload" in pins)
    assert run.sequence_parallel or "pp" not in pins
    answered = CachedAnswer(question=question, answer=answer)
    compared = 0
    for route, kinds in ROUTES.items():
        digits = _PRINTED_DIGITS if route in _TABLES else None
        try:
            theirs = route(answered) if kind in kinds else None
        except NotApplicable:
            continue
        if theirs is not None:
            found = differences(str(question), in_the_answer(answered), theirs, digits=digits)
            assert not found, "\n".join(map(str, found))
            compared += 1
    assert compared >= 2


def test_a_named_solver_gives_a_plan_the_same_prediction() -> None:
    work = Workload(global_batch=8, sequence_length=TOKENS)
    on = "1x2xh100-sxm"
    answer = api.plan(f"{models.__name__}:alike", on, work, solver="dp", tp=1, pp=1)
    assert answer.plan is not None
    assert answer.prediction is not None
    assert api.predict(answer.plan, on=on).step_time_s == answer.prediction.step_time_s


def test_questions_are_the_same_every_time() -> None:
    again = islice(answered_questions(SEED, FEW), 3)
    assert [str(each.question) for each in again] == [
        str(each.question) for each in _answers(FEW)[:3]
    ]


def test_every_kind_of_question_is_drawn() -> None:
    drawn = [each.question.kind for each in _answers(FEW)]
    assert min(drawn.count(kind) for kind in Kind) >= 5


def test_a_difference_in_the_last_bit_is_found() -> None:
    nearly = {"step_time_s": 1.0 + 2**-52}
    assert differences("a question", {"step_time_s": 1.0}, nearly)
    assert not differences("a question", {"step_time_s": 1.0}, nearly, digits=_PRINTED_DIGITS)
    # A part that one route does not have is a difference.
    parts = {"step_time_s": 1.0, "part compute": 1.0}
    assert differences("a question", {**parts, "part bubble": 0.5}, parts)
