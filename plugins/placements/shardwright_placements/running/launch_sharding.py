"""Launch a sharding file: torchrun with one process per device of the mesh.

This file imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from executor.launch import torchrun
from profiles.document import read_document
from profiles.errors import InputError, MismatchError
from shardwright_placements.sharding_file import (
    OP_SHARDING_SCHEMA,
    SHARDED_RUN_SCHEMA,
    OpShardingFile,
    ShardedRun,
)


def run_sharding(
    path: str | Path,
    *,
    model: str = "",
    steps: int = 3,
    output: str | Path = "run.json",
    processes: int | None = None,
    timeout_s: float = 300.0,
    announce: Callable[[str], None] | None = None,
) -> ShardedRun:
    """Run the placements in a file on this machine and compare them with one process.

    announce  called with the command after all checks
    Raises MismatchError if the file is for another number of processes or has no placements,
    RunError with the first failing rank's message.
    """
    answer = read_document(path, OpShardingFile, schema=OP_SHARDING_SCHEMA)
    if not answer.calls:
        raise MismatchError(f"{path} has no placements: {answer.status}, {answer.reason}")
    if steps < 1:
        raise InputError(f"--steps must be 1 or more, got {steps}")
    devices = math.prod(answer.mesh_sizes)
    if processes is not None and processes != devices:
        raise MismatchError(
            f"{path} is for a mesh of {devices} devices, --processes is {processes}; make it again "
            f"with --mesh {processes}"
        )
    torchrun(
        "shardwright_placements.running.shard_check",
        path,
        devices,
        {"steps": steps, "output": output, "timeout": f"{timeout_s:g}", "model": model},
        threads=1,
        announce=announce,
    )
    return read_document(output, ShardedRun, schema=SHARDED_RUN_SCHEMA)
