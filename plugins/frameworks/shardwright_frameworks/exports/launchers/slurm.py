"""Slurm: a batch script that starts `run.sh` once on every node."""

from __future__ import annotations

from shardwright_frameworks.exports.launchers.job import RUN_SCRIPT, Job
from shardwright_frameworks.exports.values.exported import ExportedFile


def slurm_files(job: Job) -> tuple[ExportedFile, ...]:
    """`job.sbatch` (options: slurm.schedmd.com/sbatch.html)."""
    devices = f"#SBATCH --gpus-per-node={job.devices_per_node}" if job.device_type == "gpu" else ""
    lines = [
        "#!/usr/bin/env bash",
        f"#SBATCH --job-name={job.name}",
        f"#SBATCH --nodes={job.num_nodes}",
        "#SBATCH --ntasks-per-node=1",
        devices,
        "#SBATCH --exclusive",
        "#SBATCH --time=24:00:00",
        "#SBATCH --output=%x-%j.log",
        "# Add what your site asks for: --partition, --account, a container (--container-image).",
        "set -euo pipefail",
        "",
        'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "export MASTER_PORT=${MASTER_PORT:-29500}",
        "export NNODES=$SLURM_NNODES",
        "",
        'srun --kill-on-bad-exit=1 bash -c \'NODE_RANK=$SLURM_NODEID exec bash "$0" "$@"\' \\',
        f'  "${{SLURM_SUBMIT_DIR:-$PWD}}/{RUN_SCRIPT}" "$@"',
        "",
    ]
    text = "\n".join(line for line in lines if line or not line.startswith("#SBATCH"))
    text = text.replace("\n\n#SBATCH", "\n#SBATCH")
    return (ExportedFile(path="job.sbatch", text=text, executable=True),)
