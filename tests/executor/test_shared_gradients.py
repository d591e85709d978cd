"""Gradients of whole weights that each tensor-parallel rank applies to its share only."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from profiles.model.loaders import resolve_model
from profiles.model.tracing.trace import executor_facts
from tests.executor.cases import LLAMA_ENTRIES, TINY_LLAMA, make_plan, run_job

QWEN3 = {
    **TINY_LLAMA,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 8,
}


def test_they_are_summed_over_ranks_and_replicas(tmp_path: Path) -> None:
    """The norms of queries and keys of Qwen3, which are the last that replicas exchange."""
    path = tmp_path / "qwen3.json"
    path.write_text(json.dumps(QWEN3))
    rules = executor_facts(resolve_model(str(path)), sequence_length=16).rules
    assert sum(kind == "sum_gradient" for _, kind in rules) == 2
    plan = replace(make_plan(str(path), LLAMA_ENTRIES, tp=2, dp=2), tensor_parallel=rules)
    (result,) = run_job([("qwen3", plan)], 4, tmp_path)
    assert result["worst"] <= 1e-5, result
