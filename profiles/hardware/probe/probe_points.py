"""From the samples of a probe to a device, its link and the cluster that they make."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiles.errors import InputError
from profiles.hardware.catalogue.cluster import Cluster, Level, NodeGroup
from profiles.hardware.catalogue.device import (
    WEIGHT_PASS,
    AttentionPoint,
    ConvPoint,
    Device,
    HostPoint,
    MatmulPoint,
    Measurements,
    MemoryPoint,
)
from profiles.hardware.catalogue.link import Link, LinkPoint
from profiles.hardware.probe.cpu_clock import DELAY_LIMIT, Sample, Summary, summarise
from profiles.hardware.probe.probe_cases import MEMORY_OPS, Case
from profiles.hardware.probe.probe_layers import conv_op, recurrence_op
from profiles.sourced import Sourced

# A thread in a gloo collective also waits for its own transport threads where every core has a
# rank. Measured on a quiet 2-core EPYC virtual machine (torch 2.13, 42 cases of 1 KiB to 64 MiB,
# 2026-11-21): the delay was 12 % of the wall time in the median sample and 67 % at the 95 %
# quantile. Only what exceeds that is disturbance from outside.
LINK_DELAY_LIMIT = 0.67


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """The samples of one case: per rank that took part, in order."""

    case: Case
    samples: tuple[tuple[Sample, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the machine itself says about one device."""

    name: str
    vendor: str
    type: str
    memory_bytes: Sourced
    reserved_bytes: Sourced
    power_w: Sourced
    fingerprint: Mapping[str, str]


def cluster_from(
    probed: Sequence[Probed],
    facts: Facts,
    *,
    num_devices: int,
    clock: str,
    source: str,
    date: str,
    backend: str,
    host: tuple[HostPoint, ...] = (),
) -> Cluster:
    """A one-node cluster named `local` that holds every measured point.

    clock  `cpu` where an op runs on the one thread that is timed, else `wall`
    Raises InputError where there is no matmul, launch or large copy: they give its rates.
    """
    ordered = sorted((p for p in probed if any(p.samples)), key=lambda p: _key(p.case))
    summaries = [(p.case, summary_of(p, clock=clock)) for p in ordered]
    measurements = Measurements(
        source=source,
        date=date,
        matmul=tuple(
            MatmulPoint(dtype=c.dtype, time_s=s.time_s, **c.shape)
            for c, s in summaries
            if c.matmul is not None
        ),
        attention=tuple(
            AttentionPoint(dtype=c.dtype, phase=str(c.phase), time_s=s.time_s, **c.shape)  # type: ignore[arg-type] # `causal` is a bool
            for c, s in summaries
            if c.attention is not None
        ),
        memory=tuple(
            MemoryPoint(
                op=c.op if c.family == "aten" else _memory_op(c.op),
                moved_bytes=c.moved_bytes,
                time_s=s.time_s,
                dtype=c.dtype,
            )
            for c, s in summaries
            if c.family in ("memory", "aten")
        ),
        conv=tuple(_conv_point(c, s) for c, s in summaries if c.conv or c.recurrence),
        host=host,
    )
    spreads = {c: s.spread for c, s in summaries}
    launch = [(c, s) for c, s in summaries if c.family == "launch"]
    copies = [(c, s) for c, s in summaries if c.family == "bandwidth"]
    if not (measurements.matmul and launch and copies):
        raise InputError("a probe without a matmul, a launch and a large copy describes no device")

    def measured(value: float, case: Case) -> Sourced:
        return Sourced(
            value=value, source=source, date=date, method="measured", uncertainty=spreads[case]
        )

    peaks = {}
    for dtype in sorted({point.dtype for point in measurements.matmul}):
        rated = [(c.work_flop / s.time_s, c) for c, s in summaries if c.matmul and c.dtype == dtype]
        best, case = max(rated, key=lambda pair: pair[0])
        peaks[dtype] = measured(best, case)
    device = Device(
        name=facts.name,
        vendor=facts.vendor,
        type=facts.type,
        peak_flop_per_s=peaks,
        memory_bytes=facts.memory_bytes,
        reserved_bytes=facts.reserved_bytes,
        memory_bandwidth_bytes_per_s=measured(
            copies[0][0].size_bytes / copies[0][1].time_s, copies[0][0]
        ),
        power_w=facts.power_w,
        launch_s=measured(launch[0][1].time_s, launch[0][0]),
        measurements=measurements,
        notes=_counts(summaries),
        fingerprint=facts.fingerprint,
    )
    group = NodeGroup(count=1, devices_per_node=num_devices, device=device)
    points = tuple(
        LinkPoint(
            operation=c.op,
            group_size=c.group_size,
            size_bytes=c.buffer_bytes,
            time_s=s.time_s,
        )
        for c, s in summaries
        if c.family == "link"
    )
    levels: tuple[Level, ...] = ()
    if num_devices > 1:
        link = link_from(points, name=f"{backend} in one machine", source=source, date=date)
        levels = (Level(name="machine", domain_size=num_devices, link=link),)
    return Cluster(name="local", groups=(group,), levels=levels)


def summary_of(probed: Probed, *, clock: str) -> Summary:
    """The median of a case: over all ranks' samples, or for a link over those of the slowest."""
    if probed.case.family != "link":
        pooled = [sample for samples in probed.samples for sample in samples]
        return summarise(pooled, clock=clock, compute_only=clock == "cpu")
    events = [_slowest(each) for each in zip(*probed.samples, strict=True)]
    return summarise(events, clock="wall", limit=LINK_DELAY_LIMIT)


def _slowest(samples: tuple[Sample, ...]) -> Sample:
    """One event as all ranks saw it: it took as long, and waited as long, as on the worst rank."""
    delays = [sample.delay_s for sample in samples if sample.delay_s is not None]
    return Sample(
        wall_s=max(sample.wall_s for sample in samples),
        cpu_s=max(sample.cpu_s for sample in samples),
        delay_s=max(delays, default=None),
    )


def link_from(points: Sequence[LinkPoint], *, name: str, source: str, date: str) -> Link:
    """The link that the points describe: its best message rate, latency and collective share.

    Bus bandwidth of an all-reduce on n devices is 2 (n - 1) / n x size / time: nccl-tests,
    doc/PERFORMANCE.md. Efficiency is the best one relative to the best message rate, at most 1.
    """
    sends = sorted((p.size_bytes, p.time_s) for p in points if p.operation == "send")
    reduces = [p for p in points if p.operation == "all_reduce"]
    if not sends or not reduces:
        raise InputError("a probed link needs messages and all-reduces: none were measured")
    bandwidth = max(size / time_s for size, time_s in sends)
    bus = max(2 * (p.group_size - 1) / p.group_size * p.size_bytes / p.time_s for p in reduces)

    def measured(value: float) -> Sourced:
        return Sourced(value=value, source=source, date=date, method="measured")

    return Link(
        name=name,
        bandwidth_bytes_per_s=measured(bandwidth),
        latency_s=measured(sends[0][1]),
        efficiency=measured(min(1.0, bus / bandwidth)),
        points=tuple(points),
    )


def slug(text: str) -> str:
    """A device name from a vendor's model name.

    >>> slug("NVIDIA H100 80GB HBM3"), slug("AMD EPYC(TM) 9755")
    ('nvidia-h100-80gb-hbm3', 'amd-epyc-9755')
    """
    plain = re.sub(r"\((r|tm)\)", "", text.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-") or "unknown"


def _key(case: Case) -> tuple[object, ...]:
    shape = tuple(case.shape.values())
    conv = str(case.conv or case.recurrence or "")
    of = (case.family, case.op, case.dtype, case.phase, case.group_size, case.size_bytes)
    return (*of, shape, conv)


def _conv_point(case: Case, summary: Summary) -> ConvPoint:
    """Of a convolution, or of a layer of a recurrence."""
    phase = str(case.phase)
    if case.recurrence is not None:
        op = recurrence_op(case.recurrence, case.phase, case.dtype)
        kind = case.recurrence.kind
    else:
        assert case.conv is not None
        op = conv_op(case.conv, case.phase, case.dtype)
        assert op.matmul is not None
        assert op.conv is not None
        kind = op.conv.kind(op.matmul.k)
        phase = phase if op.conv.input_gradient else WEIGHT_PASS
    assert op.matmul is not None
    return ConvPoint(
        dtype=case.dtype,
        phase=phase,
        kind=kind,
        rows=op.matmul.m,
        channels=op.matmul.n,
        patch=op.matmul.k,
        work_flop=op.work_flop,
        moved_bytes=op.read_bytes + op.written_bytes,
        time_s=summary.time_s,
        images=op.conv.images if op.conv is not None else 1,
        stride=op.conv.stride if op.conv is not None else 1,
    )


def _memory_op(variant: str) -> str:
    families = {name: op for op, variants in MEMORY_OPS for name, _ in variants}
    return families.get(variant, "optimizer")


def _counts(summaries: Sequence[tuple[Case, Summary]]) -> str:
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
