"""Ranks with shares of the tokens have the gradients of the unsplit model."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from profiles.model.loaders import resolve_model
from profiles.model.tracing.trace import executor_facts
from simulator.values.plan import Plan, Recompute
from tests.executor.cases import (
    GPT2_ENTRIES,
    LLAMA_ENTRIES,
    TINY_GPT2,
    TINY_LLAMA,
    make_plan,
    run_job,
)

TOLERANCE = 1e-5
CONFIGS = {
    "llama": TINY_LLAMA,
    "gpt2": TINY_GPT2,
    # A norm of the queries of all heads is applied to a rank's heads, and sees all tokens.
    "qwen3": {
        **TINY_LLAMA,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 8,
    },
}


@lru_cache(maxsize=8)
def _rules(path: str) -> tuple[tuple[str, str], ...]:
    facts = executor_facts(resolve_model(path), sequence_length=16, sequence_parallel=True)
    assert not facts.why_not(2)
    return facts.rules


def shared(name: str, folder: Path, **choices: object) -> tuple[str, Plan]:
    """A case: a plan of two tensor-parallel ranks that share the tokens."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(CONFIGS[name]))
    entries = GPT2_ENTRIES if name == "gpt2" else LLAMA_ENTRIES
    schedule = "1f1b" if choices.get("pp", 1) != 1 else "none"
    plan = make_plan(str(path), entries, tp=2, **{"schedule": schedule, **choices})  # type: ignore[arg-type] # fields by name
    rules = _rules(str(path))
    return f"{name} {choices}", replace(plan, tensor_parallel=rules, sequence_parallel=True)


def _checked(cases: list[tuple[str, Plan]], processes: int, folder: Path) -> None:
    results = run_job(cases, processes, folder)
    assert [r["name"] for r in results] == [name for name, _ in cases], results[-1]
    for result in results:
        assert result["worst"] <= TOLERANCE, result
        assert result["checked"] >= 18, result


def test_gradients_of_two_ranks(tmp_path: Path) -> None:
    cases = [
        shared("llama", tmp_path),
        shared("llama", tmp_path, recompute=Recompute.FULL),
        shared("gpt2", tmp_path, recompute=Recompute.ATTENTION),
        shared("qwen3", tmp_path, precision="bf16"),
    ]
    _checked(cases, 2, tmp_path)


def test_gradients_with_replicas_and_stages(tmp_path: Path) -> None:
    cases = [
        shared("qwen3", tmp_path, dp=2),
        shared("llama", tmp_path, dp=2, zero_stage=3),
        shared("gpt2", tmp_path, pp=2, recompute=Recompute.FULL),
        shared("llama", tmp_path, pp=2, schedule="zb-h1"),
    ]
    _checked(cases, 4, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CONFIGS])
def test_gradients_of_every_layout(name: str, tmp_path: Path) -> None:
    cases = [
        shared(name, tmp_path, recompute=kind, **layout)
        for kind in Recompute
        for layout in (
            {"dp": 2},
            {"dp": 2, "zero_stage": 1},
            {"dp": 2, "zero_stage": 2, "precision": "bf16"},
            {"dp": 2, "zero_stage": 3},
            {"pp": 2},
            {"pp": 2, "vpp": 2, "schedule": "interleaved"},
            {"pp": 2, "schedule": "zb-h1", "precision": "bf16"},
        )
    ]
    _checked(cases, 4, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_gradients_of_stages_with_replicas(zero: int, tmp_path: Path) -> None:
    cases = [shared(name, tmp_path, pp=2, dp=2, zero_stage=zero) for name in CONFIGS]
    _checked(cases, 8, tmp_path)
