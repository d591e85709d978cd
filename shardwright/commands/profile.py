"""`shardwright profile`."""

from __future__ import annotations

import datetime
from pathlib import Path

from rich.text import Text

from shardwright.commands.asked import import_from_here, sequence_of
from shardwright.commands.output import Bar, show
from shardwright.commands.plan import provenance
from shardwright.places import local_profile, trace_cache
from simulator.workload import Workload


def profile(
    *,
    quick: bool,
    devices: int | None,
    threads: int,
    model: str | None,
    seq: int | None,
    micro_batch: str,
    precision: str,
    output: Path | None,
    quiet: bool,
) -> None:
    """`shardwright profile`."""
    from planner.space import parse_axis
    from profiles.hardware.fingerprint import num_cores
    from profiles.hardware.probe import measure_machine
    from profiles.hardware.profile_file import read_profile, with_blocks, write_profile

    path = output or local_profile()
    count = devices or max(1, num_cores() // threads)
    today = datetime.date.today().isoformat()
    if model is None or not path.is_file() or quick:
        with Bar("measuring this machine", quiet=quiet) as progress:
            cluster = measure_machine(count, threads, date=today, quick=quick, progress=progress)
        write_profile(path, cluster, provenance=provenance(cluster))
    cluster = read_profile(path)
    if model is not None:
        from profiles.hardware.probe_blocks import measure_blocks
        from profiles.model.loaders import resolve_model

        import_from_here(model)
        length, _ = sequence_of(model, seq)
        work = Workload(global_batch=1, sequence_length=length, precision=precision)
        with Bar("measuring blocks", quiet=quiet) as progress:
            points = measure_blocks(
                resolve_model(model),
                parse_axis(micro_batch, "--micro-batch"),
                sequence_length=length,
                dtype=work.compute_dtype,
                num_processes=cluster.num_devices,
                threads_per_device=threads,
                cache=trace_cache(),
                progress=progress,
            )
        cluster = with_blocks(cluster, points, date=today)
        write_profile(path, cluster, provenance=provenance(cluster))
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
