"""`shardwright profile`: measures this machine, or calibrates predictions with your own logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from planner.axes import parse_axis
from shardwright.console.flags import Local, Precision, Quiet, Seq
from shardwright.console.output import Bar, need_room_for, note, show
from shardwright.plugins.plugin import Hook, hook
from shardwright.requests.local_paths import local_profile
from shardwright.requests.machine_profile import profile_machine

EXAMPLES = (
    "Examples:\n\n  shardwright profile --quick\n\n  shardwright profile --model "
    "tiny-llama-demo --seq 128 --micro-batch 4"
)


def profile(
    quick: Annotated[bool, typer.Option("--quick", help="measure for about a minute only")] = False,
    devices: Annotated[
        int | None,
        typer.Option(
            "--devices",
            min=1,
            help="number of devices (default: all GPUs, or the cores / --threads)",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="CPU threads per device (default: 1)")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="add measurements of this model's blocks")
    ] = None,
    seq: Seq = None,
    micro_batch: Annotated[
        str, typer.Option("--micro-batch", help="with --model: samples, 4 or 1,2,4")
    ] = "1",
    precision: Precision = Precision.FP32,
    output: Annotated[Path | None, typer.Option("-o", help="profile file to write")] = None,
    from_runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            help="calibrate instead of measuring: a table of runs, logs, or output of nccl-tests; "
            "repeatable",
        ),
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option("--config", help="configuration of each --from log; repeatable"),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            "--on", help="device of a --config or cluster of nccl-tests, if not named there"
        ),
    ] = "",
    force: Annotated[
        bool, typer.Option("--force", help="with --from: write even without improvement")
    ] = False,
    local: Local = None,
    quiet: Quiet = False,
) -> None:
    """`shardwright profile`."""
    need_room_for(output)
    if from_runs:
        # Here, since only a calibration fits.
        from shardwright.commands.tables.calibrate import calibrate

        if config or len(from_runs) > 1 or from_runs[0].suffix in (".log", ".out", ".txt"):
            calibrate_from_logs = hook(Hook.PROFILE_FROM)
            calibrate_from_logs(from_runs, config or (), output, force=force, device=on)
        else:
            calibrate(from_runs[0], output, force=force)
        return
    path = output or local or local_profile()
    sizes = parse_axis(micro_batch, "--micro-batch")
    if not quiet and not quick and (model is None or not path.is_file()):
        note("measuring this machine takes about 15 minutes (--quick: one)")
    try:
        cluster = profile_machine(
            path,
            quick=quick,
            devices=devices,
            threads=threads,
            model=model,
            seq=seq,
            micro_batches=sizes,
            precision=precision.value,
            progress=lambda title: Bar(title, quiet=quiet),
        )
    except KeyboardInterrupt:
        note("what was measured is kept; the same command goes on from there")
        raise
    device = cluster.groups[0].device
    found = device.measurements
    blocks = len(found.blocks) if found else 0
    peak = device.peak_flop_per_s["float32"].value
    show(
        Text(
            f"{path}: {cluster.num_devices} devices, {peak / 1e9:.0f} GFLOP/s fp32 each, "
            f"{blocks} measured blocks. {device.notes}"
        )
    )
