"""MaxText's own configuration reads the exported flags."""

from __future__ import annotations

from pathlib import Path

import pytest
from shardwright_frameworks.exports.export_plan import export_plan

from plugins.frameworks.tests.frameworks.folders import read_by, started_by, write_folder
from plugins.frameworks.tests.sixty_plans import sixty_plans

pytestmark = pytest.mark.frameworks


def test_flags_are_read_as_planned(tmp_path: Path) -> None:
    plans = {case.name: case.plan for case in sixty_plans() if case.target == "maxtext"}
    cases = {}
    for name, plan in plans.items():
        command = started_by(write_folder(tmp_path / name, export_plan(plan, "maxtext")))
        start = command.index("/maxtext_base") + 1
        cases[name] = {
            "arguments": command[start:],
            "slices": 1 if plan.device_type == "tpu" else plan.num_nodes,
        }
    found = read_by("maxtext", "read_maxtext.py", cases, tmp_path)
    found.pop("version")
    assert {name: each["error"] for name, each in found.items() if "error" in each} == {}
    for name, plan in plans.items():
        run, read = plan.run, found[name]
        assert read["ici_fsdp_parallelism"] * read["dcn_fsdp_parallelism"] == run.degrees.dp
        assert read["ici_tensor_parallelism"] * read["dcn_tensor_parallelism"] == run.degrees.tp
        assert read["max_target_length"] == run.seq_len
        assert read["base_num_decoder_layers"] == run.model.num_layers
        sequences = read["per_device_batch_size"] * plan.run.degrees.num_devices
        assert sequences * read["gradient_accumulation_steps"] == run.global_batch
