"""`shardwright profile`."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from planner.search.space import parse_axis
from shardwright.asking.machine_profile import profile_machine
from shardwright.asking.places import local_profile
from shardwright.commands.output import Bar, note, show


def profile(
    *,
    quick: bool,
    devices: int | None,
    threads: int | None,
    model: str | None,
    seq: int | None,
    micro_batch: str,
    precision: str,
    output: Path | None,
    quiet: bool,
) -> None:
    """`shardwright profile`."""
    path = output or local_profile()
    sizes = parse_axis(micro_batch, "--micro-batch")
    if not quiet and not quick and (model is None or not path.is_file()):
        note("measuring this machine takes about 5 minutes (--quick: under 30 s)")
    try:
        cluster = profile_machine(
            path,
            quick=quick,
            devices=devices,
            threads=threads,
            model=model,
            seq=seq,
            micro_batches=sizes,
            precision=precision,
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
