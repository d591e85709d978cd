"""`shardwright run` of a file of placements."""

from __future__ import annotations

import math
from pathlib import Path

from profiles.errors import InputError, ToleranceError
from profiles.units import parse_quantity
from shardwright import api
from shardwright.commands.output import note, show
from shardwright.reports.sharding import sharded_run_report


def run_sharded_file(
    path: Path,
    *,
    model: str,
    steps: int,
    output: Path,
    processes: int | None,
    device: str,
    timeout: str,
) -> None:
    """Run it beside one process and say what agrees; raises ToleranceError where something not."""
    from executor.sharding.launch_sharding import run_sharding, sharding_command

    if device != "cpu":
        raise InputError(
            f"--device {device}: placements are compared with one process on the CPU, in fp32"
        )
    answer = api.load_sharding(path)
    shown = sharding_command(
        path, processes=math.prod(answer.mesh_sizes), model=model, steps=steps, output=output
    )
    note("running: " + " ".join(["torchrun", *shown[3:]]))
    seconds = parse_quantity(timeout, "time", where="--timeout")
    found = run_sharding(
        path, model=model, steps=steps, output=output, processes=processes, timeout_s=seconds
    )
    show(sharded_run_report(found))
    if not found.passed:
        raise ToleranceError(
            f"{path}: what ran is not what was planned; the table above says where"
        )
    note(f"written: {output}")
