"""Units under torch.compile: the gradients of the unsplit model, and eager ones where torch makes
no graph. Backend `aot_eager`: torch's graphs of forward and backward, without generated kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from executor.compiled_units import CompiledUnit
from profiles.model.building.build import build_model
from profiles.model.loaders import resolve_model
from simulator.values.plan import Recompute
from simulator.values.runnable import why_not_runnable_plan
from tests.executor.cases import (
    CNN_ENTRIES,
    GPT2_ENTRIES,
    LLAMA_ENTRIES,
    TINY_LLAMA,
    every_block_a_stage,
    make_plan,
    run_job,
    write_models,
)
from tests.executor.one_process import worst_error

TOLERANCE = 1e-5


@pytest.mark.parametrize(
    ("model", "entries", "recompute"),
    [
        pytest.param("llama", LLAMA_ENTRIES, Recompute.FULL, marks=pytest.mark.slow),
        pytest.param("gpt2", GPT2_ENTRIES, Recompute.NONE, marks=pytest.mark.slow),  # with dropout
        ("cnn", CNN_ENTRIES, Recompute.NONE),
    ],
)
def test_compiled_stages_have_the_gradients_of_the_unsplit_model(
    model: str, entries: tuple[str, ...], recompute: Recompute, tmp_path: Path
) -> None:
    models = write_models(tmp_path)
    plan = make_plan(
        models[model], entries, pp=2, schedule="1f1b", recompute=recompute, micro_batches=2
    )
    units: dict[str, CompiledUnit] = {}
    assert worst_error(plan, units) <= TOLERANCE
    assert len(units) >= len(entries)
    assert {path: unit.why_eager for path, unit in units.items() if unit.why_eager} == {}


def test_a_model_under_torch_compile_is_planned_and_run_without_it() -> None:
    """Its stages ended in an internal error of torch."""
    name = "tests.executor.replay_zoo:compiled"
    built = build_model(resolve_model(name), micro_batch=2, sequence_length=1)
    assert [path for path, _ in built.module.layers.named_children()] == ["0", "1", "2"]
    assert not any("_orig_mod" in path for path, _ in built.module.named_modules())
    assert any("`run --compile`" in said for said in built.assumptions)
    assert worst_error(every_block_a_stage(name, 3)) <= TOLERANCE


@pytest.mark.slow
def test_compiled_units_of_two_processes(tmp_path: Path) -> None:
    """Under FSDP2, with recomputation and in bf16; with tensor parallelism; between messages."""
    llama = tmp_path / "llama.json"  # of two layers, each a unit
    llama.write_text(json.dumps({**TINY_LLAMA, "num_hidden_layers": 2}))
    entries = (*LLAMA_ENTRIES[:3], LLAMA_ENTRIES[-1])
    layouts: dict[str, dict[str, Any]] = {
        "zero 3": {"dp": 2, "zero_stage": 3, "recompute": Recompute.FULL, "precision": "bf16"},
        "zero 0": {"dp": 2, "precision": "bf16"},
        "1f1b": {"pp": 2, "schedule": "1f1b"},
        "tp": {"tp": 2},
    }
    cases = [(name, make_plan(str(llama), entries, **each)) for name, each in layouts.items()]
    results = run_job(cases, 2, tmp_path, backend="aot_eager")
    assert [r["name"] for r in results] == list(layouts), results[-1]
    for result in results:
        assert result["passed"], result
        assert result["worst"] <= TOLERANCE, result
        # The hooks of split layers ask which tensor they had last: torch makes no graph of it.
        layers = {f"model.layers.{i}" for i in range(2)} if result["name"] == "tp" else set()
        assert set(result["eager"]) == layers, result


class Branching(nn.Linear):
    """Its code depends on a value, of which no graph can be made."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if float(y.sum().detach()) > 0 else -y


def test_a_unit_without_a_graph_runs_eagerly_and_says_why() -> None:
    module = Branching(4, 4)
    x = torch.randn(2, 4)
    wanted = module(x)
    module.forward = unit = CompiledUnit(module, "aot_eager")  # type: ignore[method-assign] # as compile_units does
    assert torch.equal(module(x), wanted)
    assert "data-dependent" in unit.why_eager
    assert torch.equal(module(x), wanted)


def test_an_error_of_the_model_stays_one() -> None:
    unit = CompiledUnit(nn.Linear(4, 4), "eager")
    with pytest.raises(RuntimeError, match="shapes"):
        unit(torch.randn(2, 3))


def test_schedules_that_split_the_backward_are_refused(tmp_path: Path) -> None:
    models = write_models(tmp_path)
    whole = make_plan(models["llama"], LLAMA_ENTRIES, pp=2, schedule="1f1b")
    halves = make_plan(models["llama"], LLAMA_ENTRIES, pp=2, schedule="zb-h1")
    assert why_not_runnable_plan(whole, compiled=True) == ""
    assert "plan with --schedule 1f1b" in why_not_runnable_plan(halves, compiled=True)
    assert why_not_runnable_plan(halves) == ""
