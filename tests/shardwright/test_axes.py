"""Flags as values: axes, counts and what is refused with its flag."""

from __future__ import annotations

import pytest

from planner.axes import axes_from
from profiles.errors import InputError, ShardwrightError, UnitError
from shardwright.options.read_text import count, tokens
from simulator.values.plan import Recompute
from tests.shardwright.typed_axes import axes_of_texts


def test_flags_and_python_values_are_the_same_axes() -> None:
    typed = axes_of_texts({"tp": "1,2", "zero": "0", "schedule": "1f1b,gpipe", "recompute": "full"})
    given = axes_from(tp=(1, 2), zero=0, schedule=("1f1b", "gpipe"), recompute="full")
    assert typed == given
    assert typed.for_blocks().recompute == (Recompute.FULL,)


@pytest.mark.parametrize(
    ("axis", "text", "message"),
    [
        ("tp", "four", r"--tp 'four' is not a list of whole numbers"),
        ("micro_batch", "0", r"--micro-batch must be 1 or more"),
        ("zero", "4", r"--zero must be 0, 1, 2 or 3"),
        ("recompute", "some", r"--recompute"),
        ("schedule", "fastest", r"--schedule"),
        ("cp", "2", r"--cp 2: our own executor has no such axis.*--stack"),
        ("teepee", "2", r"unknown option 'teepee'"),
    ],
)
def test_a_wrong_axis_names_its_flag(axis: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        axes_of_texts({axis: text}).for_blocks()


def test_counts_may_have_a_prefix() -> None:
    assert [count(text, "--global-batch") for text in ("1024", "4k", "4M", "1.5k")] == [
        1024,
        4000,
        4_000_000,
        1500,
    ]
    # Lengths of sequences are powers of two: 4k is what everybody writes for 4096.
    assert [tokens(text, "--seq") for text in ("4096", "4k", "128K")] == [4096, 4096, 131_072]
    with pytest.raises(UnitError, match=r"--seq: 'long' is not a quantity"):
        tokens("long", "--seq")
    with pytest.raises(ShardwrightError, match=r"--global-batch: '1.5' is not a whole number"):
        count("1.5", "--global-batch")
