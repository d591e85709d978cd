"""Schedules that split the backward, on real processes, against the unsplit model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator.schedules.schedule import schedule_kind
from simulator.values.plan import Plan, Recompute
from simulator.values.runnable import runnable_schedules, why_not_runnable_plan
from tests.executor.cases import (
    CNN_ENTRIES,
    GPT2_ENTRIES,
    LLAMA_ENTRIES,
    make_plan,
    run_job,
    write_models,
)
from tests.executor.test_planned_models import T5

TOLERANCE = 1e-5
T5_ENTRIES = (
    "",
    *(f"encoder.block.{i}" for i in range(3)),
    "encoder.final_layer_norm",
    *(f"decoder.block.{i}" for i in range(3)),
    "decoder.final_layer_norm",
)
T5_TIES = (
    "shared.weight",
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "lm_head.weight",
)
UNET_ENTRIES = ("", "down.0.2", "up.0.0", "up.0.2", "head")
BRANCH_ENTRIES = ("", *(f"layers.{i}" for i in range(5)), "head")


def entries_of(models: dict[str, str], folder: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Model name -> what to pass as the model, and where its blocks begin."""
    (folder / "t5.json").write_text(json.dumps(T5))
    return {
        "llama": (models["llama"], LLAMA_ENTRIES),
        "gpt2, tied": (models["gpt2"], GPT2_ENTRIES),
        "cnn": (models["cnn"], CNN_ENTRIES),
        "t5": (str(folder / "t5.json"), T5_ENTRIES),
        "unet": ("tests.executor.tiny_models:unet", UNET_ENTRIES),
        "queried": ("tests.executor.weight_zoo:queried", (*BRANCH_ENTRIES[:5], "head")),
        "ignored branch": ("tests.executor.tiny_models:ignored_branch", BRANCH_ENTRIES),
    }


SPLIT_SCHEDULES = tuple(n for n in runnable_schedules() if schedule_kind(n).splits_backward)


def case(folder: Path, model: str, schedule: str, **settings: Any) -> tuple[str, Plan]:
    source, entries = entries_of(write_models(folder), folder)[model]
    settings.setdefault("pp", 2)
    vpp = schedule_kind(schedule).stages_per_rank
    plan = make_plan(source, entries, schedule=schedule, vpp=vpp, **settings)
    if model == "t5":
        plan = replace(plan, tied_parameters=(T5_TIES,))
    assert why_not_runnable_plan(plan) == ""
    return f"{model} {schedule} {settings}", plan


def checked(cases: list[tuple[str, Plan]], processes: int, folder: Path) -> list[dict[str, Any]]:
    results = run_job(cases, processes, folder)
    assert [r["name"] for r in results] == [name for name, _ in cases], results[-1]
    for result in results:
        assert result["worst"] <= TOLERANCE, result
    return results


def test_every_split_schedule_on_two_processes(tmp_path: Path) -> None:
    """Beside the gradients: in bf16 the two halves round as the whole does, as far from fp32 as
    1F1B but for the order of sums; sums of 16 micro-batches in bf16 would be off by more."""
    cases = [case(tmp_path, "llama", name) for name in SPLIT_SCHEDULES]
    cases += [
        case(tmp_path, "llama", schedule, recompute=kind)
        for schedule, kind in (("zbv", Recompute.FULL), ("zb-h1", Recompute.ATTENTION))
    ]
    # Tied over ranks, and in a V on one; several tensors over a cut; convolutions and skips; a
    # tensor that crosses and is not used, so that no gradient is handed back within a rank.
    cases += [
        case(tmp_path, model, schedule)
        for model, schedule in (
            ("gpt2, tied", "zb-h1"),
            ("gpt2, tied", "zbv"),
            ("t5", "v-min"),
            ("unet", "zbv"),
            ("cnn", "dualpipev"),
            ("ignored branch", "zbv"),
            ("ignored branch", "zb-h1"),
        )
    ]
    # A step of one micro-batch.
    cases += [case(tmp_path, "llama", "v-half", micro_batches=1)]
    rounded = {"precision": "bf16", "micro_batches": 16, "micro_batch": 1}
    plain = make_plan(
        write_models(tmp_path)["llama"], LLAMA_ENTRIES, pp=2, schedule="1f1b", **rounded
    )
    cases += [("llama 1f1b bf16", plain), case(tmp_path, "llama", "zb-h2", **rounded)]
    *_, whole, split = checked(cases, 2, tmp_path)
    assert split["rounded"]["kept"] == ["torch.float32"], split
    assert split["rounded"]["worst"] == pytest.approx(whole["rounded"]["worst"], rel=1e-3)


@pytest.mark.slow
def test_replicas_and_tensor_parallelism_on_four_processes(tmp_path: Path) -> None:
    """Gradients are averaged or reduced after the last W, with weights sharded between I and W."""
    cases = [
        case(tmp_path, "llama", "zb-h2", dp=2, zero_stage=3),
        case(tmp_path, "queried", "zb-h1", dp=2, zero_stage=3),
        case(tmp_path, "llama", "zbv", tp=2),
    ]
    cases += [
        case(tmp_path, "llama", schedule, dp=2, zero_stage=zero)
        for schedule, zero in (("zb-h1", 0), ("zbv", 1), ("v-half", 2))
    ]
    cases += [
        case(tmp_path, "unet", "zb-h1", dp=2, zero_stage=3),
        case(tmp_path, "t5", "v-half", pp=4, micro_batches=8),
    ]
    checked(cases, 4, tmp_path)
