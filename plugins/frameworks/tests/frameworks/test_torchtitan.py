"""torchtitan's own config manager loads what is exported, and its splitter gives the planned
stages."""

from __future__ import annotations

from pathlib import Path

import pytest
from shardwright_frameworks.exports.export_plan import export_plan

from plugins.frameworks.tests.frameworks.folders import read_by, write_folder
from plugins.frameworks.tests.sixty_plans import sixty_plans
from simulator.schedules.schedule import build_schedule

pytestmark = pytest.mark.frameworks


def test_configurations_are_read_as_planned(tmp_path: Path) -> None:
    plans = {case.name: case.plan for case in sixty_plans() if case.target == "torchtitan"}
    folders = {
        name: str(write_folder(tmp_path / name, export_plan(plan, "torchtitan")))
        for name, plan in plans.items()
    }
    found = read_by("torchtitan", "read_torchtitan.py", folders, tmp_path)
    found.pop("version")
    assert {name: each["error"] for name, each in found.items() if "error" in each} == {}
    for name, plan in plans.items():
        run, read = plan.run, found[name]
        for axis in ("tp", "pp", "cp", "dp"):
            assert read[axis] == getattr(run.degrees, axis), (name, axis)
        assert read["ffn"] == run.model.ffn_size
        assert read["parameters"] == run.model.parameters
        assert read["reshards"] == ("always" if run.zero_stage == 3 else "never")
        if run.degrees.pp == 1:
            continue
        assert read["local_batch"] == run.global_batch // run.degrees.dp
        assert [each["layers"] for each in read["stages"]] == [s.num_layers for s in plan.stages]
        assert [each["rank"] for each in read["stages"]] == [s.rank for s in plan.stages]
        assert [each["head"] for each in read["stages"]] == [s.has_head for s in plan.stages]
    assert found["llama-3.1-70b-fp8"]["converters"] == ["quantize.linear.float8"]


def test_python_configurations_are_read_as_planned(tmp_path: Path) -> None:
    """By torchtitan 0.3: its config manager, and its model built on shapes; fp8 asks for a GPU."""
    plans = {case.name: case.plan for case in sixty_plans() if case.target == "torchtitan"}
    plans = {name: plan for name, plan in plans.items() if plan.run.precision == "bf16"}
    folders = {
        name: str(write_folder(tmp_path / name, export_plan(plan, "torchtitan")))
        for name, plan in plans.items()
    }
    found = read_by("torchtitan3", "read_torchtitan_python.py", folders, tmp_path)
    assert found.pop("version") == "0.3.0"
    assert {name: each["error"] for name, each in found.items() if "error" in each} == {}
    for name, plan in plans.items():
        run, read = plan.run, found[name]
        for axis in ("tp", "pp", "cp", "dp", "global_batch", "seq_len"):
            assert read[axis] == getattr(run.degrees, axis), (name, axis)
        assert read["parameters"] == run.model.parameters
        assert read["reshards"] == ("always" if run.zero_stage == 3 else "never")
        assert read["unknown_modules"] == []
        if run.degrees.pp > 1:
            assert read["local_batch"] == run.global_batch // run.degrees.dp
            assert read["layers"] == [stage.num_layers for stage in plan.stages]


def test_schedules_without_a_name_in_torch_are_read_from_the_file(tmp_path: Path) -> None:
    plans = {case.name: case.plan for case in sixty_plans() if case.name.endswith(("h1", "half"))}
    folders = {
        name: str(write_folder(tmp_path / name, export_plan(plan, "torchtitan")))
        for name, plan in plans.items()
    }
    found = read_by("torchtitan", "read_torchtitan.py", folders, tmp_path)
    for name, plan in plans.items():
        run = plan.run
        wanted = build_schedule(
            run.schedule,
            num_ranks=run.degrees.pp,
            num_microbatches=run.num_microbatches,
            stages_per_rank=run.degrees.vpp,
        )
        assert found[name]["schedule"] == "_PipelineScheduleRuntime", found[name]
        rows = found[name]["rows"]
        assert sorted(rows) == [str(rank) for rank in range(run.degrees.pp)]
        for rank, row in enumerate(wanted.ranks):
            assert rows[str(rank)] == [str(action) for action in row]
