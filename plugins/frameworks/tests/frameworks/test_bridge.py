"""Megatron-Bridge's own dataclasses take the exported overrides."""

from __future__ import annotations

from pathlib import Path

import pytest
from shardwright_frameworks.exports.export_plan import export_plan

from plugins.frameworks.tests.frameworks.folders import read_by, started_by, write_folder
from plugins.frameworks.tests.sixty_plans import sixty_plans

pytestmark = pytest.mark.frameworks


def test_overrides_are_taken_as_planned(tmp_path: Path) -> None:
    plans = {case.name: case.plan for case in sixty_plans() if case.target == "megatron-bridge"}
    folders = {}
    for name, plan in plans.items():
        folder = write_folder(tmp_path / name, export_plan(plan, "megatron-bridge"))
        folders[name] = str(folder)
        words = started_by(folder)
        assert f"model.tensor_model_parallel_size={plan.run.degrees.tp}" in words
        assert f"train.global_batch_size={plan.run.global_batch}" in words
    found = read_by("bridge", "read_bridge.py", folders, tmp_path)
    found.pop("version")
    assert {name: each["error"] for name, each in found.items() if "error" in each} == {}
    for name, plan in plans.items():
        run, degrees, read = plan.run, plan.run.degrees, found[name]
        assert (read["tp"], read["pp"], read["vpp"]) == (degrees.tp, degrees.pp, degrees.vpp)
        assert read["ep"] == degrees.ep
        assert read["layers"] == run.model.num_layers
        assert read["global_batch"] == run.global_batch
        assert read["distributed_optimizer"] == (run.zero_stage == 1)
        assert bool(read["fp8"]) == (run.precision == "mxfp8")
