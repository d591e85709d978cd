"""The time of one collective, or one message, of a group of devices placed on a cluster.

Measured points of the link come first: time over size as a curve per operation and group size.
Where there are none, latency and bandwidth of the levels that the group spans give it:

    all_gather, reduce_scatter   (n - 1) a + (n - 1) / n  S / B
    all_reduce                   the sum of the two, or a tree: 2 log2(n) a + 2 S / B
    broadcast                    log2(n) a + S / B          (pipelined tree)
    all_to_all                   (n - 1) a + (n - 1) / n  S / B
    send                         a + S / B
    barrier                      2 log2(n) a

S size of the full buffer, n devices, a latency of one message, B bandwidth per device. Rings and
trees: Thakur, Rabenseifner and Gropp, Int. J. High Perf. Comp. Appl. 19(1), 2005, section 4; the
factors (n - 1) / n: nccl-tests, doc/PERFORMANCE.md; NCCL takes the tree where it is faster (NVIDIA
developer blog, "Massively Scale Your Deep Learning Training with NCCL 2.4", 2019).

A group that spans several domains of a level (n1 members in each of n2) runs as NCCL's rings do:
through all members of a domain before leaving it, one ring per network card, so that the n1
members' links to the outer level carry it together. B is the least over the levels of
    inner level   its bandwidth x efficiency
    outer level   n1 x bandwidth x efficiency / devices per card that are on / oversubscription
and `a` of each hop is that of the level that it crosses.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from profiles.errors import UnknownNameError
from profiles.hardware.cluster import Cluster, Level
from profiles.hardware.fit import Curve, CurveValue, fit_curve
from profiles.hardware.link import OPERATIONS, Link

# Relative half-width of a time from the formulas where the link's own numbers are exact: nothing
# was measured, and NCCL's choice of channels and protocol alone moves times by this much. Assumed.
FORMULA_UNCERTAINTY = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class CommCost:
    """Seconds of a collective with a 90 % interval.

    method  `measured`, `interpolated` or `assumed`;  source  the link's numbers
    """

    time_s: float
    low_s: float
    high_s: float
    method: str
    source: str


NOTHING = CommCost(time_s=0.0, low_s=0.0, high_s=0.0, method="measured", source="one device")


@dataclass(frozen=True, slots=True)
class _Span:
    """How a group lies on one level: members joined by it per domain, and what it gives them."""

    level: Level
    members: int
    inside: int


def price_collective(
    operation: str,
    size_bytes: float,
    devices: tuple[int, ...],
    cluster: Cluster,
    *,
    sharing: int = 1,
) -> CommCost:
    """The cost of `operation` on the devices with these numbers.

    size_bytes  the full buffer, as in profiles.hardware.link.LinkPoint
    sharing     how many such groups of the same domains communicate at the same time

    Raises UnknownNameError for another operation.
    """
    if operation not in OPERATIONS:
        raise UnknownNameError("operation", operation, OPERATIONS)
    if len(devices) < 2 or (size_bytes <= 0 and operation != "barrier"):
        return NOTHING
    level = cluster.level_between(devices)
    size_bytes = float(size_bytes)
    spans = _spans(devices, cluster)
    formula = _formula(operation, size_bytes, spans, cluster, sharing)
    measured = _measured(operation, size_bytes, len(devices), level.link)
    if measured is None:
        return _from_formula(formula, level.link)
    read, group_size = measured
    if group_size == len(devices):
        method = "assumed" if read.method == "extrapolated" else read.method
        ratio = 1.0
    else:
        # Another group size on the same link: the measured time moves as the formula does.
        outer = spans[-1]
        members = max(2, round(group_size / outer.inside))
        measured_spans = (*spans[:-1], replace(outer, members=members))
        there = _formula(operation, size_bytes, measured_spans, cluster, sharing)
        ratio = formula / there if there > 0 else 1.0
        method = "assumed"
    if sharing > 1:
        alone = _formula(operation, size_bytes, spans, cluster, 1)
        ratio *= formula / alone if alone > 0 else 1.0
    wider = 1.0 + (FORMULA_UNCERTAINTY if method == "assumed" else 0.0)
    return CommCost(
        time_s=read.value * ratio,
        low_s=read.low * ratio / wider,
        high_s=read.high * ratio * wider,
        method=method,
        source=level.link.bandwidth_bytes_per_s.source,
    )


def _from_formula(time_s: float, link: Link) -> CommCost:
    numbers = (link.bandwidth_bytes_per_s, link.efficiency, link.latency_s)
    width = math.log1p(FORMULA_UNCERTAINTY + sum(number.uncertainty for number in numbers))
    return CommCost(
        time_s=time_s,
        low_s=time_s * math.exp(-width),
        high_s=time_s * math.exp(width),
        method="assumed",
        source=link.bandwidth_bytes_per_s.source,
    )


def _spans(devices: tuple[int, ...], cluster: Cluster) -> tuple[_Span, ...]:
    """Levels that the group uses, inner first: how many parts each joins, members within one."""
    spans = []
    parts = len(devices)
    for level in cluster.levels:
        domains = len({index // level.domain_size for index in devices})
        joined = math.ceil(parts / domains)
        if joined > 1:
            spans.append(_Span(level, joined, math.ceil(len(devices) / parts)))
        parts = domains
        if domains == 1:
            break
    return tuple(spans)


def _bandwidth(span: _Span, cluster: Cluster, sharing: int) -> float:
    """Bytes per second that one ring position of the group gets at this level."""
    link = span.level.link
    inner = 1
    for level in cluster.levels:
        if level is span.level:
            break
        inner = level.domain_size
    # Devices of an inner domain that are on at once, spread over its cards.
    active = min(span.inside * sharing, max(inner, span.inside))
    cards = max(1.0, max(inner, link.shared_by) / link.shared_by)
    per_card = min(float(link.shared_by), max(1.0, active / cards))
    rate = link.bandwidth_bytes_per_s.value * link.efficiency.value
    return rate * span.inside / per_card / span.level.oversubscription


def _formula(
    operation: str, size: float, spans: tuple[_Span, ...], cluster: Cluster, sharing: int
) -> float:
    count = math.prod(span.members for span in spans)
    share = (count - 1) / count
    rates = [_bandwidth(span, cluster, sharing) for span in spans]
    rate = min(rates)
    # Hops of a ring over all members, each with the latency of the level that it crosses.
    ring_s = tree_s = 0.0
    outer = count
    for span in spans:
        outer //= span.members
        ring_s += (span.members - 1) * outer * span.level.link.latency_s.value
        tree_s += math.log2(span.members) * span.level.link.latency_s.value
    if operation == "all_reduce":
        ring = 2 * ring_s + 2 * share * size / rate
        return min(ring, 2 * tree_s + 2 * size / rate)
    if operation in ("all_gather", "reduce_scatter"):
        return ring_s + share * size / rate
    if operation == "broadcast":
        return tree_s + size / rate
    if operation == "all_to_all":
        # Every device sends to all others itself: the outer level carries each one's own part.
        slowest, beyond = 0.0, 1.0
        for span, level_rate in zip(reversed(spans), reversed(rates), strict=True):
            part = beyond * (span.members - 1) / span.members
            slowest = max(slowest, part * size * span.inside / level_rate)
            beyond /= span.members
        return ring_s + slowest
    if operation == "barrier":
        return 2 * tree_s
    return tree_s + size / (rate / max(span.inside for span in spans))


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
