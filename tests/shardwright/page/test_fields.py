"""The page's inputs as an address and as a command line."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from planner.axes import AXES
from profiles.errors import InputError
from shardwright.cli import app
from shardwright.page.fields import (
    Field,
    FieldErrors,
    address_of,
    command_of,
    near,
    need_options,
    starting_values,
    unknown_parameters,
)
from shardwright.page.plan_question import PLAN_FIELDS, SIZE_FIELDS, read_plan, read_size

TODAY = "2026-11-22"
PAGES = {"plan": PLAN_FIELDS, "size": SIZE_FIELDS}
NAMES = st.sampled_from([field.name for field in PLAN_FIELDS])


def started(fields: tuple[Field, ...], **changed: str) -> dict[str, str]:
    return starting_values(fields, {name.replace("_", "-"): v for name, v in changed.items()})


def parsed(command: str) -> dict[str, Any]:
    """What the command line's own parser makes of a command line."""
    _, name, *words = shlex.split(command)
    group = typer.main.get_command(app)
    context = group.make_context("shardwright", [name])
    found = group.resolve_command(context, [name])[1]
    return dict(found.make_context(name, words).params)


@given(st.dictionaries(NAMES, st.text(max_size=4), max_size=4))
def test_an_address_gives_back_the_values_that_it_was_made_of(changed: dict[str, str]) -> None:
    values = starting_values(PLAN_FIELDS, {}) | changed
    assert starting_values(PLAN_FIELDS, address_of(PLAN_FIELDS, values)) == values


@pytest.mark.parametrize("name", PAGES)
def test_every_input_is_a_flag_of_the_command_line(name: str) -> None:
    fields = PAGES[name]
    asked = {"seq": "4k", "lora": "16", "pue": "1.2", "global-batch": "64", "pareto": "memory"}
    asked |= {"fit-risk": "10%"} | {axis.replace("_", "-"): "1,2" for axis in AXES}
    values = {field.name: asked.get(field.name, "x 'y") for field in fields}
    values |= {field.name: "yes" for field in fields if field.switch}
    found = parsed(command_of(name, fields, values))
    read: dict[str, object] = {
        "seq": 4096,
        "lora": 16,
        "pue": 1.2,
        "explain": True,
        "fit-risk": 0.1,
    }
    read |= {axis.replace("_", "-"): (1, 2) for axis in AXES}
    read |= {"recompute": ("1", "2"), "schedule": ("1", "2")}
    for field in fields:
        given = found[{"price-kind": "price"}.get(field.name, field.name.replace("-", "_"))]
        wanted = read.get(field.name, values[field.name])
        assert given == wanted or str(given) == wanted, field.name


def test_what_is_usual_is_not_typed() -> None:
    assert command_of("size", SIZE_FIELDS, started(SIZE_FIELDS, stack="")) == (
        "shardwright size llama-3.1-8b --on h100-sxm,b200 --tokens 1T --deadline 30d"
    )
    assert command_of("plan", PLAN_FIELDS, started(PLAN_FIELDS)) == (
        "shardwright plan llama-3.1-70b --on 16x8xh100-sxm --stack megatron-core "
        "--global-batch 1024 --seq 8192"
    )


def test_an_address_with_nonsense_names_the_nearest() -> None:
    (said,) = unknown_parameters(SIZE_FIELDS, {"tokns": "1T"})
    assert "unknown parameter 'tokns' (the page's address). Did you mean 'tokens'?" in said
    with pytest.raises(FieldErrors) as caught:
        need_options(PLAN_FIELDS, started(PLAN_FIELDS, pareto="moon", explain="perhaps"))
    assert [name for name, _ in caught.value.messages] == ["pareto", "explain"]
    assert "'moon' is not one of 'memory', 'usd'" in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "field", "text"),
    [
        ({"model": "llama-9"}, "model", "unknown model 'llama-9'"),
        ({"model": "os:abort"}, "model", "Python code, which this page does not run"),
        ({"on": "16x8xh1000"}, "on", "unknown device 'h1000'"),
        ({"on": ""}, "on", "give MODEL and --on"),
        ({"global_batch": "many"}, "global-batch", "--global-batch"),
        ({"seq": "0"}, "seq", "--seq must be 1 or more"),
        ({"lora": "x"}, "lora", "--lora 'x' is not a whole number"),
        ({"tp": "0"}, "tp", "--tp"),
        ({"zero": "7"}, "zero", "--zero"),
        ({"fit_risk": "maybe"}, "fit-risk", "--fit-risk: 'maybe' is not a probability"),
        ({"price": "cheap"}, "price", "unknown price 'cheap' (--price)"),
        ({"prices": "/no/such.toml"}, "prices", "/no/such.toml: no such file"),
        ({"stack": "megatron-cores"}, "stack", "Did you mean 'megatron-core'?"),
    ],
)
def test_what_is_wrong_with_a_plan_stands_at_its_field(
    changed: dict[str, str], field: str, text: str
) -> None:
    with pytest.raises(FieldErrors) as caught:
        read_plan(started(PLAN_FIELDS, **changed), today=TODAY)
    ((name, said),) = caught.value.messages
    assert name == field
    assert text in said


def test_each_error_of_a_size_stands_at_its_field() -> None:
    with pytest.raises(FieldErrors) as caught:
        read_size(started(SIZE_FIELDS, tokens="15TB", deadline="soon", nodes="8..2"), today=TODAY)
    assert [name for name, _ in caught.value.messages] == ["tokens", "deadline", "nodes"]
    with pytest.raises(FieldErrors) as caught:
        read_size(started(SIZE_FIELDS, tokens="", deadline=""), today=TODAY)
    assert caught.value.messages[0][0] == "tokens"


def test_an_error_without_a_flag_goes_where_it_was_read() -> None:
    def fail() -> None:
        raise InputError("something else")

    with pytest.raises(FieldErrors) as caught:
        near(PLAN_FIELDS, "on", fail)
    assert caught.value.messages == (("on", "something else"),)
