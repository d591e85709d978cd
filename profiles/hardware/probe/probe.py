"""Measure this machine: all devices at the same time, as in training.

A device of a CPU is a share of the cores: one process of `threads_per_device` threads. All
processes measure together, because two busy cores are slower than one (shared memory and clock).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import median

import numpy as np
import torch

from profiles.document import content_hash, decode, encode
from profiles.errors import InputError
from profiles.hardware.catalogue.cluster import Cluster, Level, NodeGroup
from profiles.hardware.catalogue.device import (
    WEIGHT_PASS,
    AttentionPoint,
    ConvPoint,
    Device,
    MatmulPoint,
    Measurements,
    MemoryPoint,
)
from profiles.hardware.catalogue.link import Link, LinkPoint
from profiles.hardware.probe.cpu_clock import DELAY_LIMIT, Sample, Summary, summarise
from profiles.hardware.probe.fingerprint import (
    cpu_model,
    cpu_vendor,
    fingerprint_of_machine,
    machine_memory_bytes,
    num_cores,
)
from profiles.hardware.probe.probe_answers import RankAnswer, RankJob, at_one_speed, in_parts
from profiles.hardware.probe.probe_cases import MEMORY_OPS, Case, RecurrenceCase, probe_cases
from profiles.hardware.probe.probe_ops import moved_bytes, traced_op, work_flop
from profiles.hardware.probe.probe_reference import ROUNDS, combined_references, slowest_over_mean
from profiles.hardware.probe.probe_timing import Effort
from profiles.hardware.probe.probe_workers import Progress, no_progress, run_workers
from profiles.sourced import Sourced

# Per visit of a case. Quick: about 290 cases, within 30 s including the start of the workers. Full:
# about 1,360 cases, each visited twice, in twelve minutes.
QUICK = Effort(budget_s=0.03, link_budget_s=0.15, min_samples=3)
FULL = Effort(budget_s=0.08, link_budget_s=0.2, min_samples=3)
# Visits are minutes apart: in one visit, single points were up to twice as slow as the same call
# later (two cores, torch 2.13, 2026-11-22).
_VISITS = 2

# If every core has a rank, a thread in a gloo collective also waits for its transport threads. On
# an idle 2-core EPYC virtual machine (torch 2.13, 42 cases of 1 KiB to 64 MiB, 2026-11-21) the
# delay was 12 % of the wall time (median), 67 % at the 95 % quantile. A longer delay is a
# disturbance.
LINK_DELAY_LIMIT = 0.67

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


Summaries = list[tuple[Case, Summary]]


def measure_machine(
    num_devices: int,
    threads_per_device: int = 1,
    *,
    date: str,
    quick: bool = False,
    of_transformers: bool = False,
    progress: Progress = no_progress,
    kept: Path | None = None,
) -> Cluster:
    """This machine as a cluster of `num_devices` devices named `local`, with every measured point.

    date      ISO date of the measurement
    of_transformers  without 16-bit ops, which some CPUs run seven times slower, convolutions,
              recurrences and single ops: enough for a transformer in fp32 with measured blocks
    progress  called with (done, total, label); total is exact
    kept      file with the finished parts of an interrupted measurement of the same day, which is
              continued; the caller deletes it once the result is saved

    Disturbed samples are discarded and counted in the device's notes. Raises InputError for more
    devices than the machine has and RunError if a worker fails.
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
        [case for case in cases if not of_transformers or _is_of_transformers(case)],
        num_devices,
        threads_per_device=threads_per_device,
        date=date,
        effort=QUICK if quick else FULL,
        visits=1 if quick else _VISITS,
        progress=progress,
        kept=kept,
    )


def _is_of_transformers(case: Case) -> bool:
    return case.dtype == "float32" and case.family not in ("aten", "conv", "recurrence")


def most_devices(threads_per_device: int) -> int:
    """Number of devices of this machine: its GPUs, or its cores over the threads per device."""
    if torch.cuda.is_available():
        return torch.cuda.device_count()
    return max(1, num_cores() // threads_per_device)


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
    """As `measure_machine`, for the given cases, each `visits` times in turn.

    Raises InputError without a matmul, a launch and a large copy: they give a device's rates.
    """
    visited = tuple(cases) * visits
    progress(0, len(visited), f"starting {num_devices} processes")

    def measured(part: Sequence[Case], begin: int) -> tuple[RankAnswer, ...]:
        found = run_workers(
            "profiles.hardware.probe.probe_job:run_cases",
            encode(RankJob(cases=tuple(part), effort=effort)),
            num_processes=num_devices,
            threads_per_process=threads_per_device,
            progress=lambda done, _, label: progress(begin + done, len(visited), label),
        )
        return tuple(decode(RankAnswer, one, where=f"rank {r}") for r, one in enumerate(found))

    question = content_hash([encode(visited), encode(effort), threads_per_device, date, ROUNDS])
    parts = in_parts(visited, measured, question=question, kept=kept)
    families = [case.family for case in visited]
    answers = [at_one_speed(of_rank, families) for of_rank in zip(*parts, strict=True)]
    summaries = _summaries(cases, answers, "cpu" if threads_per_device == 1 else "wall")
    gpu_name = answers[0].machine.name
    backend = "nccl" if gpu_name else "gloo"
    name = _slug(gpu_name) if gpu_name else f"local-{_slug(cpu_model())}-{threads_per_device}t"
    threads = "" if gpu_name else f", {threads_per_device} thread(s) each"
    fingerprint = fingerprint_of_machine(threads_per_device=threads_per_device)
    source = (
        f"measured: this machine, {name}, {num_devices} devices at the same time"
        f"{threads}, torch {fingerprint['torch']}, {backend}"
    )
    # Each part has new processes, with other memory addresses.
    windows = [w for part in parts for w in zip(*(a.rounds for a in part), strict=True)]
    measurements = replace(
        _points(summaries, source, date),
        host=tuple(
            replace(points[0], time_s=sum(p.time_s for p in points) / len(points))
            for points in zip(*(a.host for a in answers), strict=True)
        ),
        references=combined_references([a.references for a in answers]),
        slowest=1.0 if gpu_name else median(slowest_over_mean(window) for window in windows),
    )
    device = _device(answers, summaries, measurements, name=name, fingerprint=fingerprint)
    group = NodeGroup(count=1, devices_per_node=num_devices, device=device)
    levels: tuple[Level, ...] = ()
    if num_devices > 1:
        link = _link(summaries, name=f"{backend} in one machine", source=source, date=date)
        levels = (Level(name="machine", domain_size=num_devices, link=link),)
    return Cluster(name="local", groups=(group,), levels=levels)


def _check_devices(num_devices: int, threads_per_device: int, *, cuda: bool) -> None:
    if num_devices < 1 or threads_per_device < 1:
        raise InputError(
            f"a profile needs at least one device of one thread, got {num_devices} devices of "
            f"{threads_per_device} threads"
        )
    if cuda and num_devices > torch.cuda.device_count():
        raise InputError(
            f"cannot profile {num_devices} devices: this machine has "
            f"{torch.cuda.device_count()} CUDA devices"
        )
    if not cuda and num_devices * threads_per_device > num_cores():
        raise InputError(
            f"{num_devices} devices x {threads_per_device} threads = "
            f"{num_devices * threads_per_device} cores, this process may use {num_cores()}: the "
            "devices would wait for each other and every number would be wrong; use fewer"
        )


def _summaries(cases: Sequence[Case], answers: Sequence[RankAnswer], clock: str) -> Summaries:
    """The median of every measured case, in the order of a profile file.

    clock  `cpu` if an op runs on one thread, otherwise `wall`
    """

    def samples(answer: RankAnswer, index: int) -> tuple[Sample, ...]:
        return tuple(chain.from_iterable(answer.samples[index :: len(cases)]))

    def order(pair: tuple[Case, Summary]) -> tuple[object, ...]:
        c = pair[0]
        sizes = () if c.family in ("conv", "recurrence") else tuple(encode(c.shape or {}).values())
        return (
            *(c.family, c.op, c.dtype, c.phase, c.group_size, c.size_bytes),
            *(sizes, c.shape_text),
        )

    found = []
    for index, case in enumerate(cases):
        if ranks := [own for own in (samples(answer, index) for answer in answers) if own]:
            found.append((case, _summary(case, ranks, clock)))
    return sorted(found, key=order)


def _summary(case: Case, ranks: Sequence[tuple[Sample, ...]], clock: str) -> Summary:
    """Median of all ranks' samples; of a link, of the slowest rank in each sample."""
    if case.family != "link":
        pooled = [sample for samples in ranks for sample in samples]
        return summarise(pooled, clock=clock, compute_only=clock == "cpu")
    events = [
        Sample(
            wall_s=max(sample.wall_s for sample in event),
            cpu_s=max(sample.cpu_s for sample in event),
            delay_s=max((s.delay_s for s in event if s.delay_s is not None), default=None),
        )
        for event in zip(*ranks, strict=True)
    ]
    return summarise(events, clock="wall", limit=LINK_DELAY_LIMIT)


def _of(summaries: Summaries, *families: str) -> Iterator[tuple[Case, Summary]]:
    return ((case, summary) for case, summary in summaries if case.family in families)


def _device(
    answers: Sequence[RankAnswer],
    summaries: Summaries,
    measurements: Measurements,
    *,
    name: str,
    fingerprint: Mapping[str, str],
) -> Device:
    """One device: the machine's own properties, the measured points, and rates computed from
    these."""
    date = measurements.date
    machines = [answer.machine for answer in answers]
    gpu, power_limit_w = bool(machines[0].name), machines[0].power_w

    def measured(value: float, source: str, spread: float = 0.0) -> Sourced:
        return Sourced(value=value, source=source, date=date, method="measured", uncertainty=spread)

    memory_bytes = machine_memory_bytes() / len(machines)
    held = f"memory of this machine (or its container's limit) / {len(machines)} devices"
    before = "resident bytes of a worker before any tensor"
    if gpu:
        memory_bytes = float(min(machine.memory_bytes for machine in machines))
        held, before = "cudaMemGetInfo: total", "cudaMemGetInfo: used before any tensor is made"
    if power_limit_w is not None:
        power_w = measured(power_limit_w, "nvidia-smi power.limit")
    else:
        threads = int(fingerprint["threads_per_device"])
        power = (_CPU_CORE_POWER_W * threads, _CPU_POWER_SOURCE, 1.0)
        value, source, width = (_GPU_POWER_W, _GPU_POWER_SOURCE, 0.8) if gpu else power
        power_w = Sourced(
            value=value, source=source, date=date, method="assumed", uncertainty=width
        )
    rates: dict[str, list[tuple[float, float]]] = {}
    for case, summary in _of(summaries, "matmul"):
        rate = work_flop(case) / summary.time_s
        rates.setdefault(case.dtype, []).append((rate, summary.spread))
    launch = next(_of(summaries, "launch"), None)
    large_copy = next(_of(summaries, "bandwidth"), None)
    if not (rates and launch and large_copy):
        raise InputError("a probe needs a matmul, a launch and a large copy to describe a device")
    best = {dtype: max(rates[dtype], key=lambda pair: pair[0]) for dtype in sorted(rates)}
    copy, copied = large_copy
    points = measurements.source
    return Device(
        name=name,
        vendor="NVIDIA" if gpu else cpu_vendor(),
        type="gpu" if gpu else "cpu",
        peak_flop_per_s={dtype: measured(r, points, spread) for dtype, (r, spread) in best.items()},
        memory_bytes=measured(memory_bytes, held),
        reserved_bytes=measured(float(max(m.reserved_bytes for m in machines)), before),
        memory_bandwidth_bytes_per_s=measured(
            copy.size_bytes / copied.time_s, points, copied.spread
        ),
        power_w=power_w,
        launch_s=measured(launch[1].time_s, points, launch[1].spread),
        measurements=measurements,
        notes=_counts(summaries),
        fingerprint=fingerprint,
    )


def _points(summaries: Summaries, source: str, date: str) -> Measurements:
    return Measurements(
        source=source,
        date=date,
        matmul=tuple(
            MatmulPoint(dtype=c.dtype, time_s=s.time_s, **encode(c.shape))
            for c, s in _of(summaries, "matmul")
        ),
        attention=tuple(
            AttentionPoint(dtype=c.dtype, phase=str(c.phase), time_s=s.time_s, **encode(c.shape))
            for c, s in _of(summaries, "attention")
        ),
        memory=tuple(
            MemoryPoint(
                op=c.op if c.family == "aten" else MEMORY_OPS[c.op][0],
                moved_bytes=moved_bytes(c),
                time_s=s.time_s,
                dtype=c.dtype,
            )
            for c, s in _of(summaries, "memory", "aten")
        ),
        conv=tuple(_conv_point(c, s.time_s) for c, s in _of(summaries, "conv", "recurrence")),
    )


def _conv_point(case: Case, time_s: float) -> ConvPoint:
    """The point of a convolution, or of a layer of a recurrence."""
    op = traced_op(case)
    assert op.matmul is not None
    phase, kind = str(case.phase), case.shape.kind if isinstance(case.shape, RecurrenceCase) else ""
    if op.conv is not None:
        kind = op.conv.kind(op.matmul.k)
        phase = phase if op.conv.input_gradient else WEIGHT_PASS
    return ConvPoint(
        dtype=case.dtype,
        phase=phase,
        kind=kind,
        rows=op.matmul.m,
        channels=op.matmul.n,
        patch=op.matmul.k,
        work_flop=op.work_flop,
        moved_bytes=op.read_bytes + op.written_bytes,
        time_s=time_s,
        images=op.conv.images if op.conv is not None else 1,
        stride=op.conv.stride if op.conv is not None else 1,
    )


def _link(summaries: Summaries, *, name: str, source: str, date: str) -> Link:
    """The measured link: its best message rate, latency and collective efficiency.

    Efficiency is the best bus bandwidth of an all-reduce, 2 (n - 1) / n x size / time (nccl-tests,
    doc/PERFORMANCE.md), over the best message rate, at most 1.
    """
    points = tuple(
        LinkPoint(
            operation=c.op, group_size=c.group_size, size_bytes=c.buffer_bytes, time_s=s.time_s
        )
        for c, s in _of(summaries, "link")
    )
    sends = sorted((p.size_bytes, p.time_s) for p in points if p.operation == "send")
    reduces = [p for p in points if p.operation == "all_reduce"]
    if not sends or not reduces:
        raise InputError("a link needs measured messages and all-reduces: there are none")
    bandwidth = max(size / time_s for size, time_s in sends)
    bus = max(2 * (p.group_size - 1) / p.group_size * p.size_bytes / p.time_s for p in reduces)

    def measured(value: float) -> Sourced:
        return Sourced(value=value, source=source, date=date, method="measured")

    return Link(
        name=name,
        bandwidth_bytes_per_s=measured(bandwidth),
        latency_s=measured(sends[0][1]),
        efficiency=measured(min(1.0, bus / bandwidth)),
        points=points,
    )


def _slug(text: str) -> str:
    """A device name from a vendor's model name.

    >>> _slug("NVIDIA H100 80GB HBM3"), _slug("AMD EPYC(TM) 9755")
    ('nvidia-h100-80gb-hbm3', 'amd-epyc-9755')
    """
    plain = re.sub(r"\((r|tm)\)", "", text.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-") or "unknown"


def _counts(summaries: Summaries) -> str:
    used = sum(s.count for _, s in summaries)
    discarded = sum(s.discarded for _, s in summaries)
    disturbed = [c.label for c, s in summaries if s.disturbed]
    text = (
        f"{len(summaries)} cases from {used} samples; {discarded} samples left out because they "
        f"waited for a core for more than {DELAY_LIMIT:.0%} of their time "
        f"({LINK_DELAY_LIMIT:.0%} for communication)"
    )
    if disturbed:
        listed = ", ".join(disturbed[:8]) + (", ..." if len(disturbed) > 8 else "")
        text += f"; {len(disturbed)} cases had no undisturbed sample: {listed}"
    return text
