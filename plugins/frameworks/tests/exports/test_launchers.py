"""What starts the script on every node."""

from __future__ import annotations

import ast
import subprocess

import yaml
from shardwright_frameworks.exports.export_plan import export_plan

from plugins.frameworks.tests.planned_runs import planned

PLAN = planned("llama-3.1-8b", "megatron-core", tp=8, dp=4, global_batch=64)


def files_of(launcher: str) -> dict[str, str]:
    return {f.path: f.text for f in export_plan(PLAN, "megatron", launcher=launcher).files}


def test_slurm_asks_for_the_nodes_and_bash_reads_it() -> None:
    text = files_of("slurm")["job.sbatch"]
    head = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --nodes=4" in head
    assert "#SBATCH --gpus-per-node=8" in head
    # Slurm stops reading options at the first command.
    first = next(n for n, line in enumerate(text.splitlines()) if not line.startswith("#"))
    assert all(line.startswith("#") for line in text.splitlines()[: len(head)])
    assert first > len(head)
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_kubernetes_has_a_master_and_three_workers() -> None:
    found = files_of("kubernetes")
    job = yaml.safe_load(found["pytorchjob.yaml"])
    assert job["apiVersion"] == "kubeflow.org/v1"
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert replicas["Master"]["replicas"] + replicas["Worker"]["replicas"] == 4
    (container,) = replicas["Master"]["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    train = yaml.safe_load(found["trainjob.yaml"])["spec"]["trainer"]
    assert (train["numNodes"], train["numProcPerNode"]) == (4, 8)
    for command in (container["command"], train["command"]):
        done = subprocess.run(["bash", "-n", "-c", command[2]], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_skypilot_and_ray() -> None:
    sky = yaml.safe_load(files_of("skypilot")["sky.yaml"])
    assert sky["num_nodes"] == 4
    assert sky["resources"] == {"accelerators": "H100:8"}
    driver = files_of("ray")["ray_job.py"]
    ast.parse(driver)
    assert "NODES = 4" in driver
    assert 'BUNDLE = {"CPU": 1, "GPU": 8}' in driver
