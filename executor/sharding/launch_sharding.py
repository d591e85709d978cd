"""Launching a file of placements: torchrun with a process per device of the mesh.

This file imports no torch.
"""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path

from executor.launch import error_files, first_failure, start_torchrun
from profiles.document import read_document
from profiles.errors import InputError, MismatchError, RunError
from simulator.values.op_sharding_file import (
    OP_SHARDING_SCHEMA,
    SHARDED_RUN_SCHEMA,
    OpShardingFile,
    ShardedRun,
)


def sharding_command(
    path: str | Path,
    *,
    processes: int,
    model: str = "",
    steps: int = 3,
    output: str | Path = "run.json",
    timeout_s: float = 300.0,
    errors: str = "",
) -> list[str]:
    """The torchrun command, ready to be started or printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={processes}", "-m", "executor.sharding.shard_check", str(path)]
    command += [f"--steps={steps}", f"--output={output}", f"--timeout={timeout_s:g}"]
    command += [f"--model={model}"] if model else []
    command += [f"--errors={errors}"] if errors else []
    return command


def run_sharding(
    path: str | Path,
    *,
    model: str = "",
    steps: int = 3,
    output: str | Path = "run.json",
    processes: int | None = None,
    threads: int = 1,
    timeout_s: float = 300.0,
) -> ShardedRun:
    """Run the placements in a file on this machine and compare them with one process.

    Raises MismatchError where the file is for another number of processes or holds no placements,
    RunError with the first failing rank's message.
    """
    answer = read_document(path, OpShardingFile, schema=OP_SHARDING_SCHEMA)
    if not answer.calls:
        raise MismatchError(f"{path} holds no placements: {answer.status}, {answer.reason}")
    if steps < 1:
        raise InputError(f"--steps must be 1 or more, got {steps}")
    devices = math.prod(answer.mesh_sizes)
    if processes is not None and processes != devices:
        raise MismatchError(
            f"{path} is for a mesh of {devices} devices, {processes} were asked for; make it again "
            f"with --mesh {processes}"
        )
    with tempfile.TemporaryDirectory(prefix="shardwright-run-") as errors:
        command = sharding_command(
            path,
            processes=devices,
            model=model,
            steps=steps,
            output=Path(output).resolve(),
            timeout_s=timeout_s,
            errors=errors,
        )
        code, text = start_torchrun(command, threads)
        if code != 0:
            raise RunError(first_failure(error_files(Path(errors)), text, code))
    return read_document(output, ShardedRun, schema=SHARDED_RUN_SCHEMA)
