"""Measured collectives of one NVLink or PCI Express domain: time over size, per group size.

A curve is the table of medians at a few sizes, linear in log-log between them. Below the smallest
size time is constant (latency); above the largest it continues the line through the last two
points, time = t1 + (S - S1) (t1 - t0) / (S1 - S0), with the rate of the last increment.

Between measured group sizes the time is read at equal bytes per link and interpolated in log2(n):
    all_reduce                      2 (n - 1) / n  S    (nccl-tests, doc/PERFORMANCE.md: bus bytes)
    all_gather, reduce_scatter, all_to_all   (n - 1) / n  S
Above the largest measured group its curve is used at those bytes, and the latency grows as between
the last two groups: per device for rings (all_gather, reduce_scatter), per doubling for all_reduce
(NVLS and trees) and all_to_all (concurrent messages). Assumed.

Without measured messages, `send` is the all_to_all of two devices at twice the size: each sends
half of its buffer. Both directions are busy, as in a pipeline; on H100 it takes 1.2 times as long
as one direction alone (vidur's send_recv). A broadcast moves S along the same rings as an
all_gather of those bus bytes.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from profiles.document import read_document
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import DATA, base_of, device_names, get_link, node_design
from profiles.hardware.catalogue.relatives import collective_relative_of
from profiles.hardware.kernels.kernel_surface import HeldOut

COLLECTIVES = DATA / "collectives"
COLLECTIVES_SCHEMA = "shardwright/collectives@1"
_RINGS = ("all_gather", "reduce_scatter")


def bus_share(operation: str, group_size: int) -> float:
    """Bytes on one device's link in one direction per byte of the buffer."""
    passes = 2.0 if operation == "all_reduce" else 1.0
    if operation in ("send", "broadcast"):
        return 1.0
    return passes * (group_size - 1) / group_size


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCurve:
    """Times of one operation on `group_size` devices of a domain.

    size_bytes  the full buffer (profiles.hardware.catalogue.link.LinkPoint), ascending
    method      `fitted`, or `assumed` for a relative's curve
    rows        number of measured rows

    Raises InputError for fewer than two points and for decreasing sizes or times.
    """

    operation: str
    group_size: int
    size_bytes: tuple[float, ...]
    time_us: tuple[float, ...]
    rows: int
    method: str = "fitted"
    log_size: tuple[float, ...] = field(init=False, repr=False, compare=False)
    log_time: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sizes, times = self.size_bytes, self.time_us
        rising = all(a < b for a, b in pairwise(sizes))
        steady = all(a <= b for a, b in pairwise(times))
        if len(sizes) < 2 or len(sizes) != len(times) or not (rising and steady):
            raise InputError(
                f"the {self.operation} curve of {self.group_size} devices needs two or more points "
                f"of growing size and time, has sizes {sizes} and times {times}"
            )
        if self.group_size < 2 or not (sizes[0] > 0 and times[0] > 0):
            raise InputError(f"the {self.operation} curve starts below 0 or has one device")
        object.__setattr__(self, "log_size", tuple(map(math.log, sizes)))
        object.__setattr__(self, "log_time", tuple(math.log(t * 1e-6) for t in times))

    @property
    def floor_s(self) -> float:
        """Seconds of the smallest message: latency."""
        return self.time_us[0] * 1e-6

    @property
    def bus_share(self) -> float:
        """Bytes that the operation moves over a device's link, per byte of the buffer."""
        return bus_share(self.operation, self.group_size)

    def time_s(self, size_bytes: float) -> float:
        """Seconds for a buffer of this size."""
        sizes, times = self.size_bytes, self.time_us
        if size_bytes <= sizes[0]:
            return times[0] * 1e-6
        if size_bytes >= sizes[-1]:
            per_byte = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
            # At least 90 % of the mean time per byte: a flat end is noise.
            per_byte = max(per_byte, 0.9 * times[-1] / sizes[-1])
            return (times[-1] + (size_bytes - sizes[-1]) * per_byte) * 1e-6
        x, logs = math.log(size_bytes), self.log_size
        right = min(bisect_right(logs, x), len(logs) - 1)
        left = right - 1
        share = (x - logs[left]) / (logs[right] - logs[left])
        return math.exp(self.log_time[left] * (1.0 - share) + self.log_time[right] * share)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCurves:
    """Measured collectives in one domain of a device (profiles/data/collectives/DEVICE.toml).

    link           name of the measured link in the catalog
    shared_medium  boards share the path (PCI Express through the host): concurrent groups take as
                   long as one group of all their devices
    held_out       errors on held-out rows, by operation and size (`where`) and split: `sizes`
                   (every third size left out), `groups` (the middle group size, predicted from its
                   neighbors), `largest-group` (the largest one, from the smaller), `other-source`
                   (rows of other publications: above 512 MiB, and five to seven devices)
    """

    device: str
    link: str
    source: str
    date: str
    method: str
    curves: tuple[CollectiveCurve, ...]
    held_out: tuple[HeldOut, ...] = ()
    shared_medium: bool = False
    by_operation: Mapping[str, tuple[CollectiveCurve, ...]] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        found: dict[str, list[CollectiveCurve]] = {}
        for curve in sorted(self.curves, key=lambda c: (c.operation, c.group_size)):
            found.setdefault(curve.operation, []).append(curve)
        missing = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"} - set(found)
        if missing:
            raise InputError(f"collectives of {self.device}: no curve of {', '.join(missing)}")
        if found["all_to_all"][0].group_size != 2:
            raise InputError(f"collectives of {self.device}: all_to_all needs a group of two")
        object.__setattr__(self, "by_operation", {k: tuple(v) for k, v in found.items()})

    def __hash__(self) -> int:
        # Hashing every point would be slow.
        return hash((self.device, self.link))

    def time_s(self, operation: str, group_size: int, bus_bytes: float) -> float:
        """Seconds of `operation` on `group_size` devices with `bus_bytes` per link."""
        if operation == "send" and "send" not in self.by_operation:
            return self.by_operation["all_to_all"][0].time_s(2.0 * bus_bytes)
        if operation == "broadcast":
            operation = "all_gather"
        curves = self.by_operation[operation]
        index = next(
            (i for i, c in enumerate(curves) if c.group_size >= group_size), len(curves) - 1
        )
        curve = curves[index]
        at = curve.time_s(bus_bytes / curve.bus_share)
        if curve.group_size == group_size or operation == "send":
            return at
        if curve.group_size < group_size:
            return at + self._growth_s(operation, curve.group_size, group_size)
        before = curves[index - 1]
        low, high = math.log(before.group_size), math.log(curve.group_size)
        share = (math.log(group_size) - low) / (high - low)
        below = before.time_s(bus_bytes / before.bus_share)
        return math.exp(math.log(below) * (1.0 - share) + math.log(at) * share)

    def floor_s(self, operation: str, group_size: int) -> float:
        """Latency: seconds of an operation without data."""
        return self.time_s(operation, group_size, 0.0)

    def hop_s(self, operation: str) -> float:
        """Latency that one more device adds to a ring, from the two largest measured groups."""
        return self._slope_s(
            operation if operation in _RINGS else "all_gather", lambda small, large: large - small
        )

    def half_width(self, operation: str, split: str = "sizes") -> float:
        """Relative half-width of a 90 % interval: the 90 % quantile of the errors of held-out rows
        of a `split` (`held_out`); 0.5 without such rows."""
        name = {"broadcast": "all_gather", "barrier": "all_reduce"}.get(operation, operation)
        found = [e.p90 for e in self.held_out if e.where == name and e.split == split]
        return max(found, default=0.5)

    def measured_groups(self, operation: str) -> tuple[int, ...]:
        """Measured group sizes of this domain."""
        curves = self.by_operation.get(operation, ())
        return tuple(curve.group_size for curve in curves if curve.method == "fitted")

    def _growth_s(self, operation: str, measured: int, group_size: int) -> float:
        if operation in _RINGS:
            return (group_size - measured) * self.hop_s(operation)
        per_doubling = self._slope_s(operation, lambda small, large: math.log2(large / small))
        return per_doubling * math.log2(group_size / measured)

    def _slope_s(self, operation: str, apart: Callable[[int, int], float]) -> float:
        """Growth of the latency between the two largest groups per unit of `apart`."""
        curves = self.by_operation[operation]
        if len(curves) < 2:
            return 0.0
        a, b = curves[-2], curves[-1]
        return max(0.0, (b.floor_s - a.floor_s) / apart(a.group_size, b.group_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledCurves:
    """Curves on another link than the measured one: latency scales with the links' latencies, the
    rest with bandwidth times efficiency."""

    curves: CollectiveCurves
    rate: float = 1.0
    latency: float = 1.0
    reason: str = ""

    def time_s(self, operation: str, group_size: int, bus_bytes: float) -> float:
        """Seconds, as CollectiveCurves.time_s."""
        time_s = self.curves.time_s(operation, group_size, bus_bytes)
        if self.rate == 1.0 and self.latency == 1.0:
            return time_s
        floor_s = self.curves.floor_s(operation, group_size)
        return floor_s * self.latency + (time_s - floor_s) / self.rate

    def hop_s(self, operation: str) -> float:
        """Latency of one more device in a ring."""
        return self.curves.hop_s(operation) * self.latency


@functools.cache
def load_curves(device_name: str) -> CollectiveCurves | None:
    """The measured curves of a device in the catalog, or None."""
    path = curves_path(device_name)
    if not path.is_file():
        return None
    return read_document(path, CollectiveCurves, schema=COLLECTIVES_SCHEMA)


def curves_path(device_name: str) -> Path:
    """The path of a device's measured curves."""
    return COLLECTIVES / f"{device_name}.toml"


@functools.cache
def curves_on(
    device_name: str, link_name: str, rate_bytes_per_s: float, latency_s: float
) -> ScaledCurves | None:
    """The curves (measured or a relative's) for a device's domain on a link with this rate
    (bandwidth times efficiency) and latency; None without curves, or if the link is neither the
    measured one nor the inner link of the device's usual node."""
    if device_name.split("@")[0] not in device_names():
        return None
    base = base_of(device_name)
    own = load_curves(base)
    relative = None if own is not None else collective_relative_of(base)
    curves = load_curves(relative.measured_on) if relative and relative.measured_on else own
    if curves is None:
        return None
    if link_name not in (curves.link, node_design(device_name).inner_link):
        return None
    measured = get_link(curves.link)
    own_rate = measured.bandwidth_bytes_per_s.value * measured.efficiency.value
    own_latency = measured.latency_s.value
    return ScaledCurves(
        curves=curves,
        rate=rate_bytes_per_s / own_rate,
        latency=latency_s / own_latency if own_latency > 0 else 1.0,
        reason=relative.reason if relative else "",
    )
