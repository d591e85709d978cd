"""Derived tensor-parallel rules, run: plain-torch models split over processes against themselves
whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator.values.plan import Recompute
from tests.executor.cases import make_plan, run_job
from tests.executor.test_tensor_parallel_rules import split_plan

_ZOO = "tests.profiles.plain_models"


@pytest.mark.parametrize(
    ("processes", "names"),
    [
        (2, ("llama_with_norms",)),
        pytest.param(2, ("one_matrix", "in_place_and_shared"), marks=pytest.mark.slow),
        pytest.param(2, ("llama", "gpt", "parallel_gpt", "torch_encoder"), marks=pytest.mark.slow),
        pytest.param(4, ("llama", "gpt", "mixture"), marks=pytest.mark.slow),
    ],
)
def test_split_models_have_the_gradients_of_the_whole(
    processes: int, names: tuple[str, ...], tmp_path: Path
) -> None:
    cases = [(n, split_plan(f"{_ZOO}:{n}", processes, processes // 2, None)) for n in names]
    results = run_job(cases, processes, tmp_path)
    assert [result["name"] for result in results] == list(names)
    for result in results:
        assert not result.get("error"), result
        assert result["worst"] <= 1e-5, result


@pytest.mark.slow
def test_with_every_other_way_to_split(tmp_path: Path) -> None:
    """Local sizes under recomputation, FSDP2, pipelines and split backward passes."""
    entries = ("", *(f"layers.{i}" for i in range(3)), "norm")
    settings: list[dict[str, Any]] = [
        {"dp": 2, "zero_stage": 3, "recompute": Recompute.FULL},
        {"dp": 2, "zero_stage": 1, "recompute": Recompute.ATTENTION},
        {"pp": 2, "schedule": "1f1b", "recompute": Recompute.FULL},
        {"pp": 2, "schedule": "zb-h1"},
    ]
    cases = []
    for name in ("llama_with_norms", "gpt"):
        rules = split_plan(f"{_ZOO}:{name}", 2, 1, None).tensor_parallel
        tied = (("words.weight", "head.weight"),) if name == "gpt" else ()
        for setting in settings:
            plan = make_plan(f"{_ZOO}:{name}", entries, tp=2, **setting)
            plan = replace(plan, tensor_parallel=rules, tied_parameters=tied)
            cases.append((f"{name} {setting}", plan))
    for result in run_job(cases, 4, tmp_path):
        assert not result.get("error"), result
        assert result["worst"] <= 1e-5, result
