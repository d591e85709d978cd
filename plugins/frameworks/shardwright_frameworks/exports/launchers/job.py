"""`Job`: the job of a launcher, and the script that it starts on every node."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

RUN_SCRIPT = "run.sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job on a number of nodes that starts `run.sh` once on each.

    name      of the job, in lower case letters, digits and dashes
    device    name in the catalog
    device_type  `gpu`, `cpu` or `tpu`
    """

    name: str
    num_nodes: int
    devices_per_node: int
    device: str
    device_type: str


def job_name(model: str, target: str) -> str:
    """A job name accepted by Slurm, Kubernetes and SkyPilot.

    >>> job_name("meta-llama/Llama-3.1-8B", "megatron")
    'meta-llama-llama-3-1-8b-megatron'
    """
    text = "".join(c if c.isalnum() else "-" for c in f"{model}-{target}".lower())
    return "-".join(part for part in text.split("-") if part)[-50:].strip("-")


def run_script(
    job: Job,
    *,
    title: str,
    program: str,
    arguments: tuple[str, ...],
    environment: Mapping[str, str],
    per_node: bool,
    imports_from_start: bool = False,
) -> str:
    """The script of one node: torchrun with the rendezvous that the launcher's variables give.

    program    run by every device, or with `per_node` once by every node
    arguments  one line each, words quoted already
    imports_from_start   whether modules of the folder where the job is started can be imported
    """
    lines = [
        "#!/usr/bin/env bash",
        f"# {title}",
        "# Started once on every node. NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT say which.",
        "set -euo pipefail",
        *(['export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"'] if imports_from_start else ()),
        'cd "$(dirname "${BASH_SOURCE[0]}")"',
        "",
        f"NNODES=${{NNODES:-{job.num_nodes}}}",
        "NODE_RANK=${NODE_RANK:-0}",
        "MASTER_ADDR=${MASTER_ADDR:-127.0.0.1}",
        "MASTER_PORT=${MASTER_PORT:-29500}",
        "export NNODES NODE_RANK MASTER_ADDR MASTER_PORT",
        f"GPUS_PER_NODE={job.devices_per_node}",
    ]
    lines += [f"export {key}={shlex.quote(value)}" for key, value in environment.items()]
    if arguments:
        lines += ["", "ARGS=(", *[f"  {line}" for line in arguments], ")"]
    given = ' "${ARGS[@]}"' if arguments else ""
    if per_node:
        lines += ["", f"exec {program}{given}" + ' "$@"', ""]
    else:
        lines += [
            "",
            'exec torchrun --nnodes "$NNODES" --node-rank "$NODE_RANK" \\',
            '  --nproc-per-node "$GPUS_PER_NODE" \\',
            '  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \\',
            f"  {program}{given}" + ' "$@"',
            "",
        ]
    return "\n".join(lines)
