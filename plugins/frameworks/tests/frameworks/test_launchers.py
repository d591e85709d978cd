"""SkyPilot, Kubernetes' models, Ray and Slurm's own parser read what starts the nodes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from shardwright_frameworks.exports.export_plan import export_plan

from plugins.frameworks.tests.frameworks.folders import read_by, write_folder
from plugins.frameworks.tests.planned_runs import planned

pytestmark = pytest.mark.frameworks
PLAN = planned("llama-3.1-8b", "megatron-core", tp=8, dp=4, global_batch=64)


def test_they_are_read_as_planned(tmp_path: Path) -> None:
    folders = {
        name: str(write_folder(tmp_path / name, export_plan(PLAN, "megatron", launcher=name)))
        for name in ("skypilot", "kubernetes", "ray")
    }
    found = read_by("launchers", "read_launchers.py", folders, tmp_path)
    assert found["skypilot"] == {"nodes": 4, "accelerators": {"H100": 8}}
    assert found["kubernetes"] == {
        "nodes": 4,
        "same": True,
        "pytorchjob": True,
        "trainjob": True,
        "limits": {"nvidia.com/gpu": "8"},
        "v2_nodes": 4,
    }
    assert found["ray"]["nodes"] == 4
    assert found["ray"]["remote"] == ["address", "run"]


def test_slurm_takes_the_script(tmp_path: Path) -> None:
    """sbatch reads options and script before it asks a controller, which there need not be."""
    if shutil.which("sbatch") is None:
        pytest.skip("sbatch is missing: apt-get install slurm-client")
    folder = write_folder(tmp_path, export_plan(PLAN, "megatron", launcher="slurm"))
    config = tmp_path / "slurm.conf"
    config.write_text(
        "ClusterName=test\nSlurmctldHost=localhost\nAuthType=auth/none\nCredType=cred/none\n"
        "GresTypes=gpu\nNodeName=n[1-4] CPUs=8 Gres=gpu:8\n"
        "PartitionName=all Nodes=ALL Default=YES\nSlurmctldTimeout=10\nMessageTimeout=5\n"
    )
    done = subprocess.run(
        ["sbatch", "--test-only", "job.sbatch"],
        env={"SLURM_CONF": str(config), "PATH": "/usr/bin:/bin"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = done.stdout + done.stderr
    # Past its own parser; a controller would say where it starts.
    assert done.returncode == 0 or "Unable to contact slurm controller" in said, said
    broken = (folder / "job.sbatch").read_text().replace("--nodes=4", "--nodez=4")
    (folder / "job.sbatch").write_text(broken)
    done = subprocess.run(
        ["sbatch", "--test-only", "job.sbatch"],
        env={"SLURM_CONF": str(config), "PATH": "/usr/bin:/bin"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "unrecognized option" in done.stderr
