"""The time of one collective, or one message, of a group of devices placed on a cluster.

Measured points of the link itself (from a profile) take precedence: a curve of time over size per
operation and group size. Otherwise the time follows from the levels that the group spans
(simulator.collectives): curves measured on the same device type inside an NVLink or PCI Express
domain (profiles.hardware.kernels.collective_curve), latency and bandwidth of the link files
elsewhere.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

from profiles.errors import UnknownNameError
from profiles.hardware.catalogue.cluster import Cluster, Level
from profiles.hardware.catalogue.link import OPERATIONS, Link
from profiles.hardware.kernels.collective_curve import ScaledCurves, curves_on
from profiles.hardware.kernels.fit import Curve, CurveValue, fit_curve
from simulator.collectives import Hop, cards_shared, collective, direct_share, message_share
from simulator.traced.cost import Cost

# Relative half-width of a time from the formulas where the link's own numbers are exact: nothing
# was measured, and NCCL's choice of channels and protocol alone moves times by this much. Assumed.
FORMULA_UNCERTAINTY = 0.25


NOTHING = Cost(value=0.0, low=0.0, high=0.0, method="measured", source="one device")


def price_collective(
    operation: str,
    size_bytes: float,
    devices: tuple[int, ...],
    cluster: Cluster,
    *,
    sharing: int = 1,
) -> Cost:
    """The cost of `operation` on the devices with these numbers.

    size_bytes  the full buffer, as in profiles.hardware.catalogue.link.LinkPoint
    sharing     number of such groups of the same domains that communicate at the same time

    Raises UnknownNameError for another operation.
    """
    if operation not in OPERATIONS:
        raise UnknownNameError("operation", operation, OPERATIONS)
    if len(devices) < 2 or (size_bytes <= 0 and operation != "barrier"):
        return NOTHING
    level = cluster.level_between(devices)
    size_bytes = float(size_bytes)
    hops = _hops(devices, cluster, sharing)
    time_s = collective(operation, size_bytes, hops).total_s
    measured = _measured(operation, size_bytes, len(devices), level.link)
    if measured is None:
        return _not_measured(time_s, operation, hops, level.link)
    read, group_size = measured
    if group_size == len(devices):
        method = "assumed" if read.method == "extrapolated" else read.method
        ratio = 1.0
    else:
        # Another group size on the same link: the measured time moves as the formula does.
        outer = hops[-1]
        members = max(2, round(group_size / outer.inside))
        there = collective(
            operation, size_bytes, (*hops[:-1], replace(outer, members=members))
        ).total_s
        ratio = time_s / there if there > 0 else 1.0
        method = "assumed"
    if sharing > 1:
        alone = collective(operation, size_bytes, _hops(devices, cluster, 1)).total_s
        ratio *= time_s / alone if alone > 0 else 1.0
    wider = 1.0 + (FORMULA_UNCERTAINTY if method == "assumed" else 0.0)
    return Cost(
        value=read.value * ratio,
        low=read.low * ratio / wider,
        high=read.high * ratio * wider,
        method=method,
        source=level.link.bandwidth_bytes_per_s.source,
    )


def _not_measured(time_s: float, operation: str, hops: tuple[Hop, ...], link: Link) -> Cost:
    """The cost with the uncertainty of the formula and of its outermost link. If a curve of such
    groups gives it, with the curve's held-out error instead; both for a group that leaves the
    domain, or if the curve is another device's."""
    numbers = (link.bandwidth_bytes_per_s, link.efficiency, link.latency_s)
    width, method = FORMULA_UNCERTAINTY, "assumed"
    source, curve = link.bandwidth_bytes_per_s.source, hops[0].curve
    if curve is None or len(hops) > 1:
        width += sum(number.uncertainty for number in numbers)
    if curve is not None:
        known = hops[0].members in curve.curves.measured_groups(operation) and not curve.reason
        own = known and len(hops) == 1
        error = curve.curves.half_width(operation, "sizes" if own else "groups")
        width, method = (error, "interpolated") if own else (error + width, method)
        source = curve.curves.source if len(hops) == 1 else source
    return Cost(
        value=time_s,
        low=time_s / (1.0 + width),
        high=time_s * (1.0 + width),
        method=method,
        source=source,
    )


def _rate(link: Link) -> float:
    return link.bandwidth_bytes_per_s.value * link.efficiency.value


def _hops(devices: tuple[int, ...], cluster: Cluster, sharing: int) -> tuple[Hop, ...]:
    """Levels that the group uses, inner first."""
    hops: list[Hop] = []
    parts = len(devices)
    below = 1
    for place, level in enumerate(cluster.levels):
        domains = len({index // level.domain_size for index in devices})
        joined = math.ceil(parts / domains)
        if joined > 1:
            inside = math.ceil(len(devices) / parts)
            curve = _curve(level, cluster, devices[0]) if inside == 1 and not hops else None
            hop = _hop(level, joined, inside, below, sharing, curve)
            hops.append(replace(hop, level=place))
        parts, below = domains, level.domain_size
        if domains == 1:
            break
    return tuple(hops)


def _hop(
    level: Level, members: int, inside: int, below: int, sharing: int, curve: ScaledCurves | None
) -> Hop:
    """A level between parts of `inside` devices; the level below joins `below` of them."""
    link = level.link
    shared = cards_shared(inside, sharing, below, link.shared_by) * level.oversubscription
    message = link.message_efficiency or link.efficiency
    bandwidth = link.bandwidth_bytes_per_s.value
    return Hop(
        members=members,
        inside=inside,
        rate_bytes_per_s=_rate(link) * direct_share(members, link.direct_peers) * inside / shared,
        message_bytes_per_s=bandwidth
        * min(message.value, link.efficiency.value)
        * message_share(link.direct_peers, link.torus_axes)
        / shared,
        latency_s=link.latency_s.value,
        torus_axes=link.torus_axes,
        curve=curve,
        loaded=min(members * sharing, level.domain_size),
    )


def _curve(level: Level, cluster: Cluster, device: int) -> ScaledCurves | None:
    """Curves of the innermost level, unless cards are shared or the link has its own points."""
    link = level.link
    if level is not cluster.levels[0] or link.points or link.shared_by > 1:
        return None
    if level.oversubscription > 1:
        return None
    name = cluster.device_at(device).name
    return curves_on(name, link.name, _rate(link), link.latency_s.value)


def _measured(
    operation: str, size: float, group_size: int, link: Link
) -> tuple[CurveValue, int] | None:
    """The time on the link's curve of the nearest measured group size, and that size."""
    curves = _curves(link).get(operation)
    if not curves:
        return None
    nearest = min(curves, key=lambda n: (abs(math.log(n / group_size)), n))
    return curves[nearest].at(max(size, 1.0)), nearest


@functools.lru_cache(maxsize=64)
def _curves(link: Link) -> dict[str, dict[int, Curve]]:
    """Time over size per operation and group size."""
    rows: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for point in link.points:
        at = rows.setdefault(point.operation, {}).setdefault(point.group_size, [])
        at.append((max(1.0, point.size_bytes), point.time_s))
    return {
        operation: {
            size: fit_curve([r[0] for r in own], [r[1] for r in own]) for size, own in sizes.items()
        }
        for operation, sizes in rows.items()
    }
