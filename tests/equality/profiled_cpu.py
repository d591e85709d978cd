"""A profiled machine of two CPUs, its points by hand."""

from __future__ import annotations

import functools

from profiles.hardware.catalogue.cluster import Cluster, Level, NodeGroup
from profiles.hardware.catalogue.device import Device, MatmulPoint, Measurements, MemoryPoint
from profiles.hardware.catalogue.link import Link
from profiles.sourced import Sourced

_DATE = "2026-11-24"
_DEVICES = 2


def _number(value: float) -> Sourced:
    return Sourced(value=value, source="by hand", date=_DATE, method="measured")


@functools.cache
def profiled_cpu() -> Cluster:
    """100 GFLOP/s and 10 GB/s, as measured at a few sizes."""
    products = tuple(
        MatmulPoint(dtype="float32", batch=1, m=m, n=m, k=m, time_s=2 * m**3 / 1e11 + 1e-6)
        for m in (32, 128, 512)
    )
    moved = tuple(
        MemoryPoint(op="elementwise", moved_bytes=size, time_s=size / 1e10, dtype="float32")
        for size in (10**4, 10**6, 10**8)
    )
    device = Device(
        name="cpu-by-hand",
        vendor="by hand",
        type="cpu",
        peak_flop_per_s={"float32": _number(1e11)},
        memory_bytes=_number(8e9),
        reserved_bytes=_number(1e8),
        memory_bandwidth_bytes_per_s=_number(1e10),
        power_w=_number(50.0),
        launch_s=_number(1e-6),
        measurements=Measurements(source="by hand", date=_DATE, matmul=products, memory=moved),
    )
    loopback = Link(
        name="loopback",
        bandwidth_bytes_per_s=_number(1e9),
        latency_s=_number(1e-4),
        efficiency=_number(0.5),
    )
    return Cluster(
        name="local",
        groups=(NodeGroup(count=1, devices_per_node=_DEVICES, device=device),),
        levels=(Level(name="machine", domain_size=_DEVICES, link=loopback),),
    )
