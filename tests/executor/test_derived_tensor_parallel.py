"""Derived tensor-parallel rules, run: plain-torch models split over processes against themselves
whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.executor.cases import run_job
from tests.executor.test_tensor_parallel_rules import split_plan

_ZOO = "tests.profiles.plain_models"


@pytest.mark.parametrize(
    ("processes", "names"),
    [
        (2, ("llama", "llama_with_norms", "gpt", "parallel_gpt", "one_matrix", "torch_encoder")),
        pytest.param(4, ("llama", "gpt", "mixture"), marks=pytest.mark.slow),
    ],
)
def test_split_models_have_the_gradients_of_the_whole(
    processes: int, names: tuple[str, ...], tmp_path: Path
) -> None:
    cases = [(n, split_plan(f"{_ZOO}:{n}", processes, processes // 2)) for n in names]
    results = run_job(cases, processes, tmp_path)
    assert [result["name"] for result in results] == list(names)
    for result in results:
        assert not result.get("error"), result
        assert result["worst"] <= 1e-5, result
