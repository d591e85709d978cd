"""A small Llama trains two steps on two processes from nothing but the exported folder."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from shardwright_frameworks.exports.export_plan import export_plan
from shardwright_frameworks.exports.values.planned_run import PlannedRun
from shardwright_frameworks.requests.planned_run import planned_run

import shardwright as public
from plugins.frameworks.tests.frameworks.folders import HERE, ROOT, python_of, write_folder
from plugins.frameworks.tests.planned_runs import small
from profiles.document import read_document
from shardwright.requests.opened_plan import open_plan
from simulator.values.measurement import MEASUREMENT_SCHEMA, Measurement
from simulator.values.plan_file import write_plan_file
from simulator.values.workload import Workload

pytestmark = pytest.mark.frameworks
FULL = {"dp": 2, "zero_stage": 3, "recompute": "full"}


def trained(
    plan: PlannedRun, target: str, environment: str, folder: Path, *more: str, **named: str
) -> str:
    """What the folder's own script prints, run to its end; `named` are variables of it."""
    write_folder(folder, export_plan(plan, target))
    binaries = Path(python_of(environment)).parent
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "PATH": f"{binaries}:/usr/bin:/bin",
        "PYTHONPATH": str(HERE / "on_cpu"),
        "SHARDWRIGHT_ON_CPU": "1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "HOME": os.environ.get("HOME", "/tmp"),
        **named,
    }
    done = subprocess.run(
        ["bash", str(folder / "run.sh"), *more],
        env=settings,
        capture_output=True,
        text=True,
        timeout=600,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    return re.sub(r"\x1b\[[0-9;]*m", "", said)


def losses(said: str) -> list[float]:
    """The loss of each step, as the first rank prints it."""
    return [float(loss) for loss in re.findall(r"step \d+/\d+ loss ([\d.]+)", said)]


# torch's FSDP asks for a GPU by accelerate: the plan is for GPUs, gloo stands in for NCCL.
def test_accelerate_shards_over_two_processes(tmp_path: Path) -> None:
    plan = replace(small(**FULL), device_type="gpu")
    said = trained(plan, "accelerate", "huggingface", tmp_path / "a", "--steps", "2")
    assert len(losses(said)) == 2
    held, total, ranks = map(int, re.findall(r"holds (\d+) of (\d+) weights, (\d+) ranks", said)[0])
    assert total == plan.run.model.parameters
    assert ranks == 2
    assert held == pytest.approx(total / 2, rel=0.02)


def test_deepspeed_shards_over_two_processes(tmp_path: Path) -> None:
    plan = replace(small(dp=2, zero_stage=2), device_type="gpu")
    said = trained(plan, "deepspeed", "huggingface", tmp_path / "d", "--steps", "2")
    assert len(losses(said)) == 2
    assert "ZeRO 2, 2 ranks" in said


@pytest.mark.parametrize(
    ("axes", "mesh"),
    [
        (FULL, "dp_shard=2"),
        ({"tp": 2, "zero_stage": 0}, "tp=2"),
        ({"pp": 2, "zero_stage": 0, "schedule": "zb-h1"}, "pp=2"),
    ],
)
def test_torchtitan_trains_on_the_planned_mesh(
    tmp_path: Path, axes: dict[str, object], mesh: str
) -> None:
    plan = small(**axes)
    folder = tmp_path / "t"
    said = trained(plan, "torchtitan", "torchtitan", folder, "--training.steps", "2")
    assert mesh in re.findall(r"Building device mesh with parallelism: (.*)", said)[0]
    assert "step:  2" in said
    found = [float(loss) for loss in re.findall(r"step:\s+2\s+loss:\s+(-?[\d.]+)", said)]
    assert max(found) == pytest.approx(5.8, abs=0.7)  # ln 256 = 5.5 at random weights
    if "schedule" in axes:
        assert "PP rank 1 is building stage_idx 1 with modules ['layers.2', 'layers.3'" in said


# Its own way to shard (spmd_types) and its pipelines ask for a newer torch than is installed.
@pytest.mark.parametrize(
    ("axes", "mesh"), [(FULL, "dp_shard=2"), ({"tp": 2, "zero_stage": 0}, "tp=2")]
)
def test_torchtitan_trains_from_the_python_configuration(
    tmp_path: Path, axes: dict[str, object], mesh: str
) -> None:
    more = ("--training.steps", "2", "--parallelism.spmd_backend", "partial_dtensor")
    config = "--module planned_config --config planned"
    folder = tmp_path / "t"
    said = trained(
        small(**axes), "torchtitan", "torchtitan3", folder, *more, TORCHTITAN_CONFIG=config
    )
    assert mesh in re.findall(r"device mesh with parallelism: (.*)", said)[0]
    found = [float(loss) for loss in re.findall(r"step:\s+2\s+loss:\s+(-?[\d.]+)", said)]
    assert max(found) == pytest.approx(5.8, abs=0.7)  # ln 256 = 5.5 at random weights


def test_our_executor_trains_from_its_folder(tmp_path: Path) -> None:
    found = public.plan(
        "tiny-llama-demo",
        "1x2xh100-sxm",
        Workload(global_batch=4, sequence_length=32),
        pp=2,
        solver="dp",
    )
    path = tmp_path / "plan.json"
    write_plan_file(path, found, provenance={})
    export = export_plan(planned_run(open_plan(path), runnable=True), "torchrun")
    folder = write_folder(tmp_path / "run", export)
    binaries = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", str(folder / "run.sh"), "--device", "cpu", "--steps", "2"],
        env={
            "PATH": f"{binaries}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "HOME": os.environ.get("HOME", "/tmp"),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    measured = read_document(folder / "run.json", Measurement, schema=MEASUREMENT_SCHEMA)
    assert (measured.world_size, len(measured.steps)) == (2, 2)
