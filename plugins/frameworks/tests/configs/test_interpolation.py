"""References between values: those that are followed, and those that stay open."""

from __future__ import annotations

from typing import Any

import pytest
from shardwright_frameworks.configs.interpolation import Open, resolved


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ({"a": "${TP:-8}"}, 8),
        ({"a": "${TP:8}"}, 8),
        ({"a": "${oc.env:TP,-8}"}, -8),
        ({"a": "${training.b.c}", "b.c": 4}, 4),
        ({"a": "${multiply:2,${b.c}}", "b.c": 4}, 8),
    ],
)
def test_followed(written: dict[str, Any], value: int) -> None:
    values = {tuple(key.split(".")): value for key, value in written.items()}
    assert resolved(("a",), values, {}) == value


@pytest.mark.parametrize(
    ("written", "value"),
    [("${oc.env:TP,4}", 8), ("${TP:-4}", 8), ("${oc.env:PP,4}", 4), ("${mul:${oc.env:TP},2}", 16)],
)
def test_a_variable_that_is_set_overrides_its_default(written: str, value: int) -> None:
    assert resolved(("a",), {("a",): written}, {"TP": "8"}) == value


@pytest.mark.parametrize(
    ("written", "exported", "value"),
    [
        ("${TP:-4}", "", 4),
        ("${oc.env:TP,4}", "", ""),
        ("${oc.env:TP}", "${a", "${a"),
        ("${TP:-4}", "${b}", "${b}"),
        ("${oc.env:TP}", "'8", "'8"),
    ],
)
def test_what_is_exported_is_taken_as_it_is(written: str, exported: str, value: object) -> None:
    assert resolved(("a",), {("a",): written, ("b",): 2}, {"TP": exported}) == value


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ({"a": "${if:${b},8,1}", "b": Open("an argument")}, "an argument"),
        ({"a": "${model.tp}", "model.name": "x", "tp": 4}, "elsewhere"),
        ({"a": "${multiply:ab,4000000000}"}, "not of numbers"),
        ({"a": "${multiply:${b},4000000000}", "b": [1]}, "not of numbers"),
    ],
)
def test_left_open(written: dict[str, Any], why: str) -> None:
    values = {tuple(key.split(".")): value for key, value in written.items()}
    found = resolved(("a",), values, {})
    assert isinstance(found, Open)
    assert why in found.why


def test_references_that_grow_end() -> None:
    values: dict[tuple[str, ...], Any] = {("k0",): "x"}
    for number in range(1, 11):
        values[f"k{number}",] = f"${{k{number - 1}}}" * 10
    found = resolved(("k10",), values, {})
    assert isinstance(found, Open)
    assert "more than 1000" in found.why
