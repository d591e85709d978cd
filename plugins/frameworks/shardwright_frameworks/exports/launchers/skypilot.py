"""SkyPilot: a task that starts `run.sh` once on every node."""

from __future__ import annotations

from typing import Any

from shardwright_frameworks.exports.launchers.job import RUN_SCRIPT, Job
from shardwright_frameworks.exports.values.exported import ExportedFile
from shardwright_frameworks.exports.values.yaml_text import yaml_text

# The catalog's names as SkyPilot's (docs.skypilot.co, compute/gpus), the longest beginning wins.
_ACCELERATORS = {
    "h100": "H100",
    "h100-nvl": "H100-NVL",
    "h200": "H200",
    "b200": "B200",
    "b300": "B300",
    "gb200": "GB200",
    "gh200": "GH200",
    "a100-sxm-40gb": "A100",
    "a100-pcie-40gb": "A100",
    "a100-sxm-80gb": "A100-80GB",
    "a100-pcie-80gb": "A100-80GB",
    "a10": "A10",
    "l40s": "L40S",
    "t4": "T4",
    "v100": "V100",
    "mi300x": "MI300X",
    "tpu-v4": "tpu-v4-8",
    "tpu-v5e": "tpu-v5litepod-8",
    "tpu-v5p": "tpu-v5p-8",
    "tpu-v6e": "tpu-v6e-8",
    "rtx-4090": "RTX4090",
    "rtx-6000-ada": "RTX6000-Ada",
}


def accelerator(device: str) -> str:
    """SkyPilot's name of a device of the catalog, or "".

    >>> accelerator("h100-sxm-80gb"), accelerator("a100-sxm-80gb"), accelerator("titan-v")
    ('H100', 'A100-80GB', '')
    """
    found = [start for start in _ACCELERATORS if (device + "-").startswith(start + "-")]
    return _ACCELERATORS[max(found, key=len)] if found else ""


def skypilot_files(job: Job) -> tuple[ExportedFile, ...]:
    """`sky.yaml` (docs.skypilot.co, reference/yaml-spec)."""
    task: dict[str, Any] = {"name": job.name, "num_nodes": job.num_nodes, "workdir": "."}
    name = accelerator(job.device)
    if name:
        task["resources"] = {"accelerators": f"{name}:{job.devices_per_node}"}
    task["run"] = (
        "export NNODES=$SKYPILOT_NUM_NODES NODE_RANK=$SKYPILOT_NODE_RANK\n"
        'export MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)\n'
        f"bash {RUN_SCRIPT}\n"
    )
    return (ExportedFile(path="sky.yaml", text=yaml_text(task)),)
