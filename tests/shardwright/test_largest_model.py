"""`size` of several models: the largest one that the limits allow."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from profiles.errors import InputError, UnknownNameError
from shardwright.cli import app
from shardwright.options.size_options import SizeOptions
from shardwright.requests.sizing.largest_model import largest_model, largest_words, models_of
from shardwright.requests.sizing.size_flags import size_flags
from shardwright.requests.sizing.sized import Detail, SizeSolver

REQUEST = SizeOptions(
    model="llama-3.*",
    on="h100-sxm",
    stack="megatron-core",
    tokens="optimal",
    budget="500k$",
    deadline="60d",
)


SOLVER = SizeSolver(
    clock=time.monotonic, today="2026-11-27", limit_s=60.0, runs=200, detail=Detail.BEST
)


def test_lists_and_patterns() -> None:
    assert models_of("gpt2, llama-3.1-8b,gpt2") == ("gpt2", "llama-3.1-8b")
    assert set(models_of("llama-3.1-*")) == {"llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"}
    with pytest.raises(UnknownNameError, match=r"unknown model 'llama-9\*'"):
        models_of("llama-9*")


def test_the_largest_model_is_the_first_that_fits_from_above() -> None:
    models = models_of("llama-3.1-*")
    tried = largest_model(REQUEST, models, SOLVER)
    assert [each.model for each in tried] == [
        "llama-3.1-405b",
        "llama-3.1-70b",
        "llama-3.1-8b",
    ][: len(tried)]
    *larger, chosen = tried
    assert larger
    assert chosen.sized.answer.best is not None
    # Each of the larger ones keeps the limits at no number of devices, as a request of its own.
    again = SOLVER.of_best().solve(size_flags(replace(REQUEST, model=larger[-1].model)))
    assert again.answer.best is None
    assert "the largest of 3 models within the limits" in largest_words(tried, 3)


@pytest.mark.slow
def test_a_larger_budget_allows_no_smaller_model() -> None:
    models = models_of("llama-3.1-*")
    sizes = [
        largest_model(replace(REQUEST, budget=budget), models, SOLVER)[-1].parameters
        for budget in ("100k$", "500k$", "20M$")
    ]
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0]


@pytest.mark.slow
def test_what_would_fit_is_solved_for_the_smallest_alone() -> None:
    larger, smallest = largest_model(
        replace(REQUEST, budget="1$"), ("gpt2", "llama-3.1-8b"), SOLVER
    )
    assert (larger.model, smallest.model) == ("llama-3.1-8b", "gpt2")
    assert not larger.sized.answer.relaxations
    assert smallest.sized.answer.relaxations


def test_limits_are_needed() -> None:
    models = ("gpt2", "llama-3.1-8b")
    with pytest.raises(InputError, match="give --budget or --deadline"):
        largest_model(replace(REQUEST, budget="", deadline=""), models, SOLVER)
    with pytest.raises(InputError, match="give --tokens"):
        largest_model(replace(REQUEST, tokens=""), models, SOLVER)


def test_the_first_screen_names_the_model(tmp_path: Path) -> None:
    path = tmp_path / "sized.json"
    command = ["size", "llama-3.1-*", "--on", "h100-sxm", "--tokens", "optimal"]
    limits = ["--budget", "500k$", "--stack", "megatron-core", "-o", str(path)]
    printed = CliRunner().invoke(app, [*command, *limits]).stdout.splitlines()
    assert printed[0].startswith("Model   llama-3.1-")
    assert len(printed) <= 13
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data["models"][-1]["model"] == data["model"]
