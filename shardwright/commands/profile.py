"""`shardwright profile`."""

from __future__ import annotations

import datetime
from pathlib import Path

from rich.text import Text

from profiles.errors import MismatchError
from profiles.hardware.cluster import Cluster
from shardwright.commands.output import Bar, show
from shardwright.commands.plan import provenance
from shardwright.named_model import import_from_here, sample_of
from shardwright.places import local_profile, trace_cache
from simulator.workload import Workload


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
    from planner.space import parse_axis
    from profiles.hardware.fingerprint import num_cores
    from profiles.hardware.probe import measure_machine
    from profiles.hardware.profile_file import read_profile, write_profile

    path = output or local_profile()
    per_device = threads or 1
    count = devices or max(1, num_cores() // per_device)
    today = datetime.date.today().isoformat()
    if model is None or not path.is_file() or quick:
        with Bar("measuring this machine", quiet=quiet) as progress:
            cluster = measure_machine(count, per_device, date=today, quick=quick, progress=progress)
        write_profile(path, cluster, provenance=provenance(cluster))
    cluster = read_profile(path)
    if model is not None:
        _check_same(path, cluster, devices, threads)
        from executor.probe_pipeline import profile_model
        from profiles.model.loaders import resolve_model
        from profiles.model.traced import trace_model
        from shardwright import api

        import_from_here(model)
        length = sample_of(model, seq).sequence_length
        work = Workload(global_batch=1, sequence_length=length, precision=precision)
        spec = resolve_model(model)
        traced = trace_model(
            spec,
            sequence_length=length,
            dtype=work.compute_dtype,
            target=api.target_of(cluster),
            cache=trace_cache(),
        )
        with Bar("measuring blocks", quiet=quiet) as progress:
            cluster = profile_model(
                spec,
                traced,
                cluster,
                parse_axis(micro_batch, "--micro-batch"),
                date=today,
                threads_per_device=_threads(cluster),
                progress=progress,
            )
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


def _threads(cluster: Cluster) -> int:
    return int(cluster.machine.get("threads_per_device", "1"))


def _check_same(path: Path, cluster: Cluster, devices: int | None, threads: int | None) -> None:
    """Blocks are measured into a profile only as the devices that it holds."""
    held = (cluster.num_devices, _threads(cluster))
    asked = (devices or held[0], threads or held[1])
    if asked != held:
        raise MismatchError(
            f"{path} holds {held[0]} devices of {held[1]} threads, --devices and --threads ask for "
            f"{asked[0]} of {asked[1]}; leave them out, or measure the machine anew first: "
            f"shardwright profile --devices {asked[0]} --threads {asked[1]} -o {path}"
        )
