"""The examples in docstrings, run as they stand."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("profiles", "simulator", "planner", "executor", "shardwright")


def with_examples() -> list[str]:
    """The modules of the shipped packages that have a `>>>`."""
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if ">>> " in path.read_text(encoding="utf-8")
    ]


def test_there_are_examples() -> None:
    assert len(with_examples()) > 20


@pytest.mark.parametrize("name", with_examples())
def test_the_examples_hold(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted
    assert not found.failed
