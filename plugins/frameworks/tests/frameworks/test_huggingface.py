"""accelerate, DeepSpeed and transformers read what is exported, and train from it on two
processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from shardwright_frameworks.exports.export_plan import export_plan

from plugins.frameworks.tests.frameworks.folders import read_by, started_by, write_folder
from plugins.frameworks.tests.sixty_plans import sixty_plans

pytestmark = pytest.mark.frameworks
TARGETS = ("accelerate", "deepspeed", "hf-trainer")


def test_files_are_read_as_planned(tmp_path: Path) -> None:
    cases, plans = {}, {}
    for case in sixty_plans():
        if case.target not in TARGETS:
            continue
        name = f"{case.target}-{case.name}"
        folder = write_folder(tmp_path / name, export_plan(case.plan, case.target))
        command = started_by(folder) if case.target == "accelerate" else []
        plans[name] = case.plan
        cases[name] = {
            "target": case.target,
            "folder": str(folder),
            "replicas": case.plan.run.degrees.dp,
            "command": command,
        }
    found = read_by("huggingface", "read_huggingface.py", cases, tmp_path)
    found.pop("versions")
    assert {name: each["error"] for name, each in found.items() if "error" in each} == {}
    for name, plan in plans.items():
        run, read = plan.run, found[name]
        if name.startswith("accelerate"):
            assert read["processes"] == plan.run.degrees.num_devices
            assert read["machines"] == plan.num_nodes
            if run.zero_stage:
                assert read["FSDP_VERSION"] == "2"
                assert read["FSDP_RESHARD_AFTER_FORWARD"] == str(run.zero_stage == 3).lower()
            if run.degrees.tp > 1:
                assert read["PARALLELISM_CONFIG_TP_SIZE"] == str(run.degrees.tp)
                assert read["PARALLELISM_CONFIG_DP_SHARD_SIZE"] == str(run.degrees.dp)
            continue
        assert read["micro_batch"] == run.micro_batch
        assert read["accumulation"] == run.num_microbatches
        if name.startswith("deepspeed"):
            assert read["zero"] == run.zero_stage
            assert read["global_batch"] == run.global_batch
            assert (read["offload"] is not None) == run.optimizer_offload
        else:
            assert read["recomputes"] == (run.recompute == "full")
            assert read["deepspeed"] == (run.zero_stage == 1 or run.optimizer_offload)
            assert read["fsdp"] == (run.zero_stage >= 2 and not read["deepspeed"])
