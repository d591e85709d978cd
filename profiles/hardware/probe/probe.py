"""Measuring this machine: every device at the same time, as they run in training.

On CPU a device is a share of the cores: one process of `threads_per_device` threads. All processes
measure together, because two busy cores are slower than one (shared memory, shared clock).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from profiles.document import content_hash, decode, encode
from profiles.errors import InputError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import HostPoint, ReferencePoint
from profiles.hardware.probe.cpu_clock import Sample
from profiles.hardware.probe.fingerprint import (
    cpu_model,
    cpu_vendor,
    fingerprint_of_machine,
    machine_memory_bytes,
    num_cores,
)
from profiles.hardware.probe.probe_cases import Case, probe_cases
from profiles.hardware.probe.probe_parts import at_one_speed, in_parts
from profiles.hardware.probe.probe_points import Facts, Probed, cluster_from, slug
from profiles.hardware.probe.probe_reference import (
    ROUNDS,
    combined_references,
    slowest_over_mean,
)
from profiles.hardware.probe.probe_timing import Effort
from profiles.hardware.probe.probe_workers import Progress, no_progress, run_workers
from profiles.hardware.probe.profile_file import with_blocks
from profiles.sourced import Sourced

# Per visit of a case. Quick has about 290 cases and must end within 30 s with the start of the
# workers; the full probe has about 1,360, visits each twice, and takes twelve minutes.
QUICK = Effort(budget_s=0.03, link_budget_s=0.15, min_samples=3)
FULL = Effort(budget_s=0.08, link_budget_s=0.2, min_samples=3)
# Minutes apart: single points of one visit were up to twice as slow as the same call later (two
# cores, torch 2.13, 2026-11-22).
_VISITS = 2

_CPU_POWER_SOURCE = (
    "assumed: a server core's share of its processor's TDP lies between 3.9 W (AMD EPYC 9755, "
    "500 W for 128 cores) and 20 W (AMD EPYC 9175F, 320 W for 16 cores), amd.com product pages; "
    "this machine does not report its own"
)
_CPU_CORE_POWER_W = 10.0
_GPU_POWER_SOURCE = (
    "assumed: datasheets of NVIDIA data-centre boards lie between 72 W (L4) and 700 W (H100 SXM); "
    "nvidia-smi did not report this board's limit"
)
_GPU_POWER_W = 400.0


def measure_machine(
    num_devices: int,
    threads_per_device: int = 1,
    *,
    date: str,
    quick: bool = False,
    progress: Progress = no_progress,
    kept: Path | None = None,
) -> Cluster:
    """This machine as a cluster of `num_devices` devices named `local`, with every measured point.

    date      ISO date of the measurement (the caller reads the clock)
    progress  called with (done, total, label); total is exact
    kept      file of what an interrupted measurement of the same day has, gone on with; for the
              caller to remove once what is given here is kept

    Disturbed samples are left out and counted in the device's notes. Raises InputError for more
    devices than the machine has and RunError where a worker fails.
    """
    cuda = torch.cuda.is_available()
    _check_devices(num_devices, threads_per_device, cuda=cuda)
    cases = probe_cases(
        num_devices=num_devices,
        quick=quick,
        accelerator=cuda,
        rng=np.random.default_rng(0),
    )
    return measure_cases(
        cases,
        num_devices,
        threads_per_device=threads_per_device,
        date=date,
        effort=QUICK if quick else FULL,
        visits=1 if quick else _VISITS,
        progress=progress,
        kept=kept,
    )


def measure_cases(
    cases: Sequence[Case],
    num_devices: int,
    *,
    threads_per_device: int = 1,
    date: str,
    effort: Effort = QUICK,
    visits: int = 1,
    progress: Progress = no_progress,
    kept: Path | None = None,
) -> Cluster:
    """As `measure_machine`, for the cases given, each measured `visits` times, a round apart."""
    cuda = torch.cuda.is_available()
    visited = tuple(cases) * visits
    progress(0, len(visited), f"starting {num_devices} processes")

    def measured(part: Sequence[Case], begin: int) -> tuple[dict[str, Any], ...]:
        return run_workers(
            "profiles.hardware.probe.probe_job:run_cases",
            {"cases": encode(tuple(part)), "effort": encode(effort)},
            num_processes=num_devices,
            threads_per_process=threads_per_device,
            progress=lambda done, _, label: progress(begin + done, len(visited), label),
        )

    question = content_hash([encode(visited), encode(effort), threads_per_device, date, ROUNDS])
    parts = in_parts(visited, measured, question=question, kept=kept)
    families = [case.family for case in visited]
    answers = [at_one_speed(of_rank, families) for of_rank in zip(*parts, strict=True)]
    probed = [
        Probed(case=case, samples=_samples_of(answers, index, len(cases)))
        for index, case in enumerate(cases)
    ]
    machines = [answer["machine"] for answer in answers]
    facts = _facts(machines, threads_per_device=threads_per_device, date=date)
    backend = "nccl" if cuda else "gloo"
    threads = "" if cuda else f", {threads_per_device} thread(s) each"
    cluster = cluster_from(
        probed,
        facts,
        num_devices=num_devices,
        clock="cpu" if threads_per_device == 1 else "wall",
        source=(
            f"measured: this machine, {facts.name}, {num_devices} devices at the same time"
            f"{threads}, torch {facts.fingerprint['torch']}, {backend}"
        ),
        date=date,
        backend=backend,
        host=_host([decode(tuple[HostPoint, ...], a["host"], where="host") for a in answers]),
    )
    references = [
        decode(tuple[ReferencePoint, ...], answer["references"], where="references")
        for answer in answers
    ]
    # Each part has new processes, and with them new places in memory.
    windows = [w for part in parts for w in zip(*(a["rounds"] for a in part), strict=True)]
    slowest = 1.0 if cuda else median(slowest_over_mean(window) for window in windows)
    return with_blocks(cluster, (), references=combined_references(references), slowest=slowest)


def _check_devices(num_devices: int, threads_per_device: int, *, cuda: bool) -> None:
    if num_devices < 1 or threads_per_device < 1:
        raise InputError(
            f"a profile needs at least one device of one thread, asked for {num_devices} devices "
            f"of {threads_per_device} threads"
        )
    if cuda and num_devices > torch.cuda.device_count():
        raise InputError(
            f"asked to profile {num_devices} devices, this machine has "
            f"{torch.cuda.device_count()} CUDA devices"
        )
    if not cuda and num_devices * threads_per_device > num_cores():
        raise InputError(
            f"asked to profile {num_devices} devices x {threads_per_device} threads = "
            f"{num_devices * threads_per_device} cores, this process may use {num_cores()}: they "
            "would wait for each other and every number would be wrong; ask for fewer"
        )


def _samples_of(
    answers: Sequence[Mapping[str, Any]], index: int, count: int
) -> tuple[tuple[Sample, ...], ...]:
    """The samples of case `index` of `count`, of all its visits, of each rank that took part."""
    per_rank = (list(chain.from_iterable(answer["samples"][index::count])) for answer in answers)
    return tuple(
        tuple(Sample(wall_s=wall, cpu_s=cpu, delay_s=delay) for wall, cpu, delay in samples)
        for samples in per_rank
        if samples
    )


def _facts(machines: Sequence[Mapping[str, Any]], *, threads_per_device: int, date: str) -> Facts:
    first = machines[0]
    gpu = "name" in first
    memory_bytes = machine_memory_bytes() / len(machines)
    held = f"memory of this machine (or its container's limit) / {len(machines)} devices"
    before = "resident bytes of a worker before any tensor"
    power = (_CPU_CORE_POWER_W * threads_per_device, _CPU_POWER_SOURCE, 1.0)
    if gpu:
        memory_bytes = min(float(machine["memory_bytes"]) for machine in machines)
        held, before = "cudaMemGetInfo: total", "cudaMemGetInfo: used before any tensor is made"
        power = (_GPU_POWER_W, _GPU_POWER_SOURCE, 0.8)
    value, source, uncertainty = power
    power_w = Sourced(
        value=value, source=source, date=date, method="assumed", uncertainty=uncertainty
    )
    if first.get("power_w") is not None:
        power_w = _measured(first["power_w"], "nvidia-smi power.limit", date)
    reserved_bytes = max(float(machine["reserved_bytes"]) for machine in machines)
    return Facts(
        name=slug(first["name"]) if gpu else f"local-{slug(cpu_model())}-{threads_per_device}t",
        vendor="NVIDIA" if gpu else cpu_vendor(),
        type="gpu" if gpu else "cpu",
        memory_bytes=_measured(memory_bytes, held, date),
        reserved_bytes=_measured(reserved_bytes, before, date),
        power_w=power_w,
        fingerprint=fingerprint_of_machine(threads_per_device=threads_per_device),
    )


def _host(ranks: Sequence[Sequence[HostPoint]]) -> tuple[HostPoint, ...]:
    """The mean over devices, point by point."""
    return tuple(
        replace(points[0], time_s=sum(p.time_s for p in points) / len(points))
        for points in zip(*ranks, strict=True)
    )


def _measured(value: float, source: str, date: str) -> Sourced:
    return Sourced(value=value, source=source, date=date, method="measured")
