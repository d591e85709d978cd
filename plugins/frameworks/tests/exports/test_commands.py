"""`export` and `check` as a user meets them, on a plan of another framework and on our own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from shardwright_frameworks.requests.planned_run import planned_run

import shardwright as public
from profiles.document import write_document
from profiles.errors import InputError
from shardwright.requests.opened_plan import open_plan, write_layout
from simulator.values.plan_file import PlanFile, write_plan_file
from simulator.values.workload import Workload
from tests.shardwright.test_cli import ROOT, shardwright

WORK = Workload(global_batch=64, sequence_length=4096)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exports") / "plan.json"
    found = public.plan("llama-3.1-8b", "2x8xh100-sxm", WORK, stack="megatron-core", tp=2, pp=2)
    write_layout(path, found, provenance={"command": "shardwright plan"})
    return path


def test_a_folder_is_made_checked_and_found_changed(plan: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = shardwright(
        "export", str(plan), "--to", "megatron", "--launcher", "slurm", "-o", str(run)
    )
    assert done.returncode == 0, done.stderr
    assert "all of the plan is expressed" in done.stdout
    assert {path.name for path in run.iterdir()} == {
        "run.sh", "job.sbatch", "README.md", "plan-check.json", "unexpressed.json",
    }  # fmt: skip
    assert (run / "run.sh").stat().st_mode & 0o111
    check = json.loads((run / "plan-check.json").read_text())
    predicted = open_plan(plan).answer.chosen.prediction  # type: ignore[union-attr]  # a layout, of which one is chosen
    assert check["step_time_s"]["value"] == predicted.step_time_s.value
    assert len(check["peak_memory_bytes"]["by_pipeline_rank"]) == 2
    assert shardwright("check", str(plan), "--against", str(run)).returncode == 0
    script = run / "run.sh"
    script.write_text(
        script.read_text().replace(
            "--tensor-model-parallel-size 2", "--tensor-model-parallel-size 4"
        )
    )
    done = shardwright("check", str(plan), "--against", str(run), "--json")
    assert done.returncode == 4
    found = json.loads(done.stdout)["agreement"]["different"]
    changed = {each["key"]: (each["planned"], each["found"]) for each in found}
    assert changed["tp"] == (2, 4)
    assert "is not what" in done.stderr


def test_a_folder_of_somebody_else_is_left_alone(plan: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done = shardwright("export", str(plan), "--to", "megatron", "-o", str(tmp_path))
    assert done.returncode == 2
    assert "are not an export" in " ".join(done.stderr.split())
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_what_is_not_expressed_is_printed_with_its_cost(plan: Path, tmp_path: Path) -> None:
    done = shardwright("export", str(plan), "--to", "accelerate", "-o", str(tmp_path / "a"))
    assert done.returncode == 0, done.stderr
    assert "pp: 2 -> 1" in done.stdout
    assert "step " in done.stdout
    assert public.check(plan, tmp_path / "a").different == ()
    folder = public.export(plan, "accelerate")
    assert {file.path for file in folder.files} == {p.name for p in (tmp_path / "a").iterdir()}
    assert folder.costs.gaps[0].gap.option == "pp"


def test_our_own_plan_of_uneven_stages(tmp_path: Path) -> None:
    """Block by block: the demo's eight layers with embedding and head around them."""
    found = public.plan(
        "tiny-llama-demo",
        "1x2xh100-sxm",
        Workload(global_batch=8, sequence_length=64),
        pp=2,
        solver="dp",
    )
    assert isinstance(found, PlanFile)
    path = tmp_path / "own.json"
    write_plan_file(path, found, provenance={})
    read = planned_run(open_plan(path))
    assert found.plan is not None
    assert sum(stage.num_layers for stage in read.stages) == 8
    assert read.stages[0].has_embedding
    assert read.stages[-1].has_head
    done = shardwright("export", str(path), "--to", "torchrun", "-o", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert open_plan(tmp_path / "run" / "plan.json").plan == found.plan
    done = shardwright("check", str(path), "--against", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr


def test_our_own_plan_with_the_optimizer_in_host_memory(tmp_path: Path) -> None:
    found = public.plan(
        "tiny-llama-demo",
        "1x2xh100-sxm",
        Workload(global_batch=8, sequence_length=64),
        dp=2,
        zero=3,
        solver="dp",
    )
    assert found.plan is not None
    moved = replace(found, plan=replace(found.plan, optimizer_offload=True))
    write_plan_file(tmp_path / "own.json", moved, provenance={})
    for target, words in (
        ("torchtitan", "enable_cpu_offload = true"),
        ("accelerate", "fsdp_offload_params: true"),
    ):
        files = public.export(tmp_path / "own.json", target).files
        assert any(words in each.text for each in files), target


def test_our_own_plan_of_another_optimizer_is_not_written_with_adam(tmp_path: Path) -> None:
    work = Workload(global_batch=8, sequence_length=64, optimizer="sgd")
    found = public.plan("tiny-llama-demo", "1x2xh100-sxm", work, dp=2, solver="dp")
    write_plan_file(tmp_path / "own.json", found, provenance={})
    assert public.export(tmp_path / "own.json", "torchrun").files
    with pytest.raises(InputError, match="trains by sgd, and files for other frameworks set adamw"):
        public.export(tmp_path / "own.json", "torchtitan")


OWN_MODULE = """import torch
from torch import nn


def net():
    width = [nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(4)]
    return nn.Sequential(nn.Linear(16, 32), *width, nn.Linear(32, 4)), (torch.randn(4, 16),)
"""


@pytest.mark.slow
def test_a_plan_of_an_own_module_starts_with_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No transformer: its blocks are stages of our executor alone. Two processes on the CPU."""
    (tmp_path / "own_module.py").write_text(OWN_MODULE)
    monkeypatch.chdir(tmp_path)
    made = ("plan", "own_module:net", "--on", "2xh100-sxm-80gb", "--global-batch", "8", "--pp", "2")
    done = shardwright(*made, "-o", "plan.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = shardwright("export", "plan.json", "--to", "torchrun", "-o", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = shardwright("check", "plan.json", "--against", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = shardwright("export", "plan.json", "--to", "megatron", "-o", "other", cwd=tmp_path)
    assert done.returncode == 2
    assert "runs on our own executor (--to torchrun)" in " ".join(done.stderr.split())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
    found = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PATH": os.pathsep.join(paths), "MASTER_PORT": str(port)}
    done = subprocess.run(
        ["bash", "run/run.sh", "--device", "cpu", "--steps", "2", "--check"],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": found},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads((tmp_path / "run" / "run.json").read_text())["ranks"]) == 2


def test_a_plan_is_exported_to_its_own_framework(plan: Path, tmp_path: Path) -> None:
    """It was an error: `--to` was missing."""
    done = shardwright("export", str(plan), "-o", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "for Megatron-LM" in done.stdout
    fsdp = tmp_path / "fsdp.json"
    found = public.plan("llama-3.1-8b", "2x8xh100-sxm", WORK, stack="torch-fsdp", tp=1)
    write_layout(fsdp, found, provenance={"command": "shardwright plan"})
    done = shardwright("export", str(fsdp), "-o", str(tmp_path / "none"))
    assert done.returncode == 2
    assert "accelerate" in done.stderr  # the targets are listed


def test_a_layout_of_another_framework_is_no_torchrun_plan(plan: Path, tmp_path: Path) -> None:
    done = shardwright("export", str(plan), "--to", "torchrun", "-o", str(tmp_path / "t"))
    assert done.returncode == 2
    assert "is a layout for megatron-core" in " ".join(done.stderr.split())


def test_what_is_no_configuration_is_refused(plan: Path, tmp_path: Path) -> None:
    write_document(tmp_path / "x.json", {"a": 1}, schema="something/else@1")
    done = shardwright("check", str(plan), "--against", str(tmp_path / "x.json"))
    assert done.returncode == 2
    assert shardwright("check", str(plan), "--against", str(tmp_path / "no.sh")).returncode == 2
