"""`LAUNCHERS`: the programs that can start `run.sh` on the nodes, and their tested versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shardwright_frameworks.exports.launchers.job import Job
from shardwright_frameworks.exports.launchers.kubernetes import kubernetes_files
from shardwright_frameworks.exports.launchers.ray import ray_files
from shardwright_frameworks.exports.launchers.skypilot import skypilot_files
from shardwright_frameworks.exports.launchers.slurm import slurm_files
from shardwright_frameworks.exports.values.exported import ExportedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """One launcher.

    files    added to the folder
    start    the command that starts the job
    """

    files: Callable[[Job], tuple[ExportedFile, ...]]
    start: str


def _none(job: Job) -> tuple[ExportedFile, ...]:
    return ()


LAUNCHERS: Mapping[str, Launcher] = {
    "torchrun": Launcher(
        files=_none,
        start="NNODES=... NODE_RANK=... MASTER_ADDR=... bash run.sh    # on every node",
    ),
    "slurm": Launcher(files=slurm_files, start="sbatch job.sbatch"),
    "kubernetes": Launcher(
        files=kubernetes_files,
        start="kubectl apply -f pytorchjob.yaml    # or trainjob.yaml with Kubeflow Trainer 2",
    ),
    "skypilot": Launcher(files=skypilot_files, start="sky launch sky.yaml"),
    "ray": Launcher(files=ray_files, start="ray job submit --working-dir . -- python ray_job.py"),
}
"""The launchers by their name in `--launcher`."""
