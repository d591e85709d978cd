"""Megatron-LM's own parser and checks and Megatron-Core's configuration read the arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.exports.export_plan import export_plan
from tests.interop.frameworks.folders import read_by, started_by, write_folder
from tests.interop.sixty_plans import sixty_plans

pytestmark = pytest.mark.frameworks


def test_arguments_are_read_as_planned(tmp_path: Path) -> None:
    plans = {case.name: case.plan for case in sixty_plans() if case.target == "megatron"}
    cases = {}
    for name, plan in plans.items():
        folder = write_folder(tmp_path / name, export_plan(plan, "megatron"))
        command = started_by(folder)
        start = command.index("/megatron_path/pretrain_gpt.py") + 1
        cases[name] = {"arguments": command[start:], "world_size": plan.world_size}
    found = read_by("megatron", "read_megatron.py", cases, tmp_path)
    assert found.pop("version")
    assert {name: each["error"] for name, each in found.items() if "error" in each} == {}
    for name, plan in plans.items():
        run, read = plan.run, found[name]
        for axis in ("tp", "pp", "vpp", "cp", "dp"):
            assert read[axis] == getattr(run, axis), (name, axis)
        assert read["ep"] == run.expert_parallel
        assert read["layers"] == run.model.num_layers
        assert read["global_batch"] == run.global_batch
        if read["stages"] is not None:
            wanted: list[list[int]] = [[] for _ in range(run.pp)]
            for number, stage in enumerate(plan.stages):
                wanted[number % run.pp].append(stage.num_layers)
            assert read["stages"] == wanted, name
        full = "full" if run.recompute == "full" else None
        assert read["recompute"] in (full, "selective"), name
    assert found["llama-3.1-8b-uneven"]["stages"] == [[7], [9], [9], [7]]
    assert found["llama-3.1-70b-fp8"]["recompute_layers"] == 5
    assert found["llama-3.1-70b-fp8"]["fp8"] == "hybrid"
