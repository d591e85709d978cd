"""Megatron-LM's own parser and checks and Megatron-Core's configuration read the arguments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from shardwright_frameworks.exports.export_plan import export_plan
from shardwright_frameworks.exports.values.planned_run import PlannedRun

from plugins.frameworks.tests.frameworks.folders import read_by, started_by, write_folder
from plugins.frameworks.tests.planned_runs import layout, of_run, planned, uneven
from plugins.frameworks.tests.sixty_plans import sixty_plans

pytestmark = pytest.mark.frameworks


def odd_plans() -> dict[str, PlannedRun]:
    """Options that none of the sixty has."""
    ahead = layout("deepseek-v3", "megatron-core", tp=8, pp=8, dp=4, ep=32)
    ahead = replace(ahead, model=replace(ahead.model, predicted_ahead=1))
    near = layout("llama-3.1-8b", "megatron-core", tp=8)
    near = replace(near, model=replace(near.model, window=1024, window_layers=24))
    chunks = planned(
        "llama-3.1-8b", "megatron-core", tp=2, pp=4, dp=2, vpp=2, schedule="interleaved"
    )
    name, stack = "llama-3.1-8b", "megatron-core"
    return {
        "zero-3": planned(name, "torch", dp=8, zero_stage=3),
        "mxfp8": planned(name, stack, dp=8, precision="mxfp8", device="b200-sxm"),
        "order": planned(name, stack, tp=2, pp=2, dp=4, axis_order="tp-cp-pp-dp"),
        "offload": planned(name, stack, tp=2, dp=4, activation_offload=0.5),
        "experts-again": planned("mixtral-8x7b", stack, tp=2, dp=4, recompute="mlp"),
        "learned-positions": planned("gpt2", stack, dp=8, seq_len=1024),
        "predicted-ahead": of_run("deepseek-v3", ahead),
        "window": of_run(name, near),
        "uneven-chunks": uneven(chunks, (3, 4, 4, 5, 4, 4, 5, 3)),
    }


def test_arguments_are_read_as_planned(tmp_path: Path) -> None:
    plans = {
        case.name: case.plan for case in sixty_plans() if case.target == "megatron"
    } | odd_plans()
    cases = {}
    for name, plan in plans.items():
        export = export_plan(plan, "megatron")
        folder = write_folder(tmp_path / name, export)
        command = started_by(folder)
        start = command.index("/megatron_path/pretrain_gpt.py") + 1
        cases[name] = {
            "arguments": command[start:],
            "environment": dict(export.exported.environment),
            "world_size": plan.run.degrees.num_devices,
        }
    found = read_by("megatron", "read_megatron.py", cases, tmp_path)
    assert found.pop("version")
    assert {name: each["error"] for name, each in found.items() if "error" in each} == {}
    for name, plan in plans.items():
        run, read = plan.run, found[name]
        for axis in ("tp", "pp", "vpp", "cp", "dp"):
            assert read[axis] == getattr(run.degrees, axis), (name, axis)
        assert read["ep"] == run.degrees.ep
        assert read["layers"] == run.model.num_layers
        assert read["global_batch"] == run.global_batch
        if read["stages"] is not None:
            wanted: list[list[int]] = [[] for _ in range(run.degrees.pp)]
            for number, stage in enumerate(plan.stages):
                wanted[number % run.degrees.pp].append(stage.num_layers)
            assert read["stages"] == wanted, name
        full = "full" if run.recompute == "full" else None
        assert read["recompute"] in (full, "selective"), name
    assert found["llama-3.1-8b-uneven"]["stages"] == [[7], [9], [9], [7]]
    assert found["llama-3.1-70b-fp8"]["recompute_layers"] == 5
    assert found["llama-3.1-70b-fp8"]["fp8"] == "hybrid"
