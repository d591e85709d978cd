"""Ray: a driver that starts `run.sh` once on every node of the cluster."""

from __future__ import annotations

import json

from shardwright_frameworks.exports.launchers.job import RUN_SCRIPT, Job
from shardwright_frameworks.exports.values.exported import ExportedFile

_DRIVER = '''"""Starts {script} once on each of {nodes} nodes:

    ray job submit --working-dir . -- python ray_job.py
"""

import os
import socket
import subprocess

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

NODES = {nodes}
BUNDLE = {bundle}


@ray.remote
def address():
    with socket.socket() as free:
        free.bind(("", 0))
        return ray.util.get_node_ip_address(), free.getsockname()[1]


@ray.remote
def run(rank, host, port):
    names = {{"NNODES": NODES, "NODE_RANK": rank, "MASTER_ADDR": host, "MASTER_PORT": port}}
    environment = {{**os.environ, **{{name: str(value) for name, value in names.items()}}}}
    return subprocess.run(["bash", "{script}"], env=environment, check=False).returncode


def main():
    ray.init()
    group = placement_group([BUNDLE] * NODES, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    options = [
        {{
            "num_cpus": BUNDLE["CPU"],
            "num_gpus": BUNDLE.get("GPU", 0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=node
            ),
        }}
        for node in range(NODES)
    ]
    host, port = ray.get(address.options(**options[0]).remote())
    codes = ray.get([run.options(**options[n]).remote(n, host, port) for n in range(NODES)])
    raise SystemExit(max(codes, key=abs))


if __name__ == "__main__":
    main()
'''


def ray_files(job: Job) -> tuple[ExportedFile, ...]:
    """`ray_job.py`."""
    bundle: dict[str, int] = {"CPU": 1}
    if job.device_type == "gpu":
        bundle["GPU"] = job.devices_per_node
    text = _DRIVER.format(script=RUN_SCRIPT, nodes=job.num_nodes, bundle=json.dumps(bundle))
    return (ExportedFile(path="ray_job.py", text=text),)
