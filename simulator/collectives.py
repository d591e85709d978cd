"""Seconds of one collective, from the levels of interconnect that its group spans.

A group spans levels (`Hop`, inner first). If the innermost was measured (collective_curve), its
curve gives the part inside a domain. Formulas give the rest:

    all_gather, reduce_scatter   (n - 1) a + (n - 1) / n  S / B
    all_reduce                   the sum of the two, or a tree: 2 log2(n) a + 2 S / B
    broadcast                    log2(n) a + S / B          (pipelined tree)
    all_to_all                   (n - 1) a + (n - 1) / n  S / B
    send                         a + S / B
    barrier                      2 log2(n) a

S size of the full buffer, n devices, a latency of one message, B bandwidth per device. Rings and
trees: Thakur, Rabenseifner and Gropp, Int. J. High Perf. Comp. Appl. 19(1), 2005, section 4; the
factors (n - 1) / n: nccl-tests, doc/PERFORMANCE.md; NCCL uses the tree if it is faster (NVIDIA
developer blog, "Massively Scale Your Deep Learning Training with NCCL 2.4", 2019). NCCL itself
counts 2 (n1 - 1 + log2(n2)) hops of a tree and as many of a ring as above (src/graph/tuning.cc).

A group that spans several domains of a level (n1 members in each of n2) runs like NCCL's rings:
through all members of a domain before leaving it, one ring per network card, so that the n1
members' links to the outer level share the traffic. B is the minimum over the levels of
    inner level   its bandwidth x efficiency
    outer level   n1 x bandwidth x efficiency / active devices per card / oversubscription
and `a` of each hop is the latency of the level that it crosses. With a curve c(n1, bytes per link)
inside:

    ring                max(c, bytes / B) + latency of the n2 - 1 hops between domains
                        + (n1 - 1) (n2 - 1) hops inside, which c does not include
    tree (all_reduce)   max(c, 2 S / B) + 2 log2(n2) a
    all_to_all          max(c of the part inside, the part that leaves / B); outside of the
                        domain one latency per _PEERS_AT_ONCE peers

On a torus of d axes of k devices, a ring along each axis in both directions has d (k - 1) / 2 hops.
all_to_all passes a mean of k / 4 links per axis: S d k / 4 / B if that is more than (n - 1) / n
(Austin et al., How to Scale Your Model, 2025, chapter 3: one axis).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from profiles.errors import UnknownNameError
from profiles.hardware.catalogue.link import OPERATIONS
from profiles.hardware.kernels.collective_curve import ScaledCurves, bus_share

# Peers that NCCL's grouped sends serve at the same time (its p2p schedule, src/enqueue.cc, eight
# per round up to 2.22). Consecutive rounds are assumed to take one latency each.
_PEERS_AT_ONCE = 8
_BARRIER_BYTES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One network level, as used by a group.

    members             parts of the group that the level connects in one of its domains
    inside              devices of the group in each part
    rate_bytes_per_s    bandwidth of a ring position here, over all cards of a part
    message_bytes_per_s bandwidth of one message
    level               0 inside a node, 1 between nodes, 2 and more beyond the nodes' network
    curve               measured times, on the innermost level only
    loaded              devices of the domain that communicate at once, of this group and of others
    """

    members: int
    inside: int
    rate_bytes_per_s: float
    message_bytes_per_s: float
    latency_s: float
    level: int = 0
    torus_axes: int = 0
    curve: ScaledCurves | None = None
    loaded: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """Seconds of a collective by level and cause.

    inner_s   inside nodes; measured times include the latency
    outer_s, far_s   bytes between nodes, and at the slowest level beyond; the levels of a ring work
                     at the same time, so only the slowest has a time
    *_latency_s      of consecutive messages on these levels
    """

    inner_s: float = 0.0
    outer_s: float = 0.0
    far_s: float = 0.0
    inner_latency_s: float = 0.0
    outer_latency_s: float = 0.0
    far_latency_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Seconds of the collective in isolation."""
        latency_s = self.inner_latency_s + self.outer_latency_s + self.far_latency_s
        return max(self.inner_s, self.outer_s, self.far_s) + latency_s

    def __add__(self, other: CollectiveTime) -> CollectiveTime:
        return CollectiveTime(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )

    def __mul__(self, factor: float) -> CollectiveTime:
        return CollectiveTime(**{f.name: getattr(self, f.name) * factor for f in fields(self)})


NOTHING = CollectiveTime()


def collective(operation: str, size_bytes: float, hops: Sequence[Hop]) -> CollectiveTime:
    """The time of an operation on a group over its levels; 0 without levels.

    size_bytes  the full buffer, as in profiles.hardware.catalogue.link.LinkPoint

    >>> half = Hop(members=8, inside=1, rate_bytes_per_s=1e11, message_bytes_per_s=1e11,
    ...            latency_s=0.0)
    >>> collective("all_gather", 8e9, [half]).total_s
    0.07

    Raises UnknownNameError for another operation.
    """
    if operation not in OPERATIONS:
        raise UnknownNameError("operation", operation, OPERATIONS)
    if not hops or (size_bytes <= 0 and operation != "barrier"):
        return NOTHING
    curve = hops[0].curve
    if operation == "barrier":
        if curve is None:
            return _time(hops, [0.0] * len(hops), _tree(hops), 2.0)
        operation, size_bytes = "all_reduce", _BARRIER_BYTES
    if operation == "send":
        return _send(size_bytes, hops, curve)
    if operation == "all_to_all":
        return _all_to_all(size_bytes, hops, curve)
    count = math.prod(hop.members for hop in hops)
    carried = bus_share(operation, count) * size_bytes
    inside = _inside(operation, carried, hops[0])
    ring = [inside, *(carried / hop.rate_bytes_per_s for hop in hops[1:])]
    if operation == "broadcast":
        return _time(hops, ring, _tree(hops))
    passes = 2.0 if operation == "all_reduce" else 1.0
    found = _time(hops, ring, _ring(operation, hops), passes)
    if operation == "all_reduce":
        inner = inside if curve is not None else 2.0 * size_bytes / hops[0].rate_bytes_per_s
        tree = [inner, *(2.0 * size_bytes / hop.rate_bytes_per_s for hop in hops[1:])]
        found = min(found, _time(hops, tree, _tree(hops), 2.0), key=lambda time: time.total_s)
    return found


def _send(size: float, hops: Sequence[Hop], curve: ScaledCurves | None) -> CollectiveTime:
    if curve is not None and len(hops) == 1:
        return _time(hops, [_inside("send", size, hops[0])], [0.0])
    crossed = hops if curve is None else hops[1:]
    slowest = min(crossed, key=lambda hop: hop.message_bytes_per_s)
    seconds = [size / slowest.message_bytes_per_s if hop is slowest else 0.0 for hop in hops]
    return _time(hops, seconds, _tree(hops))


def _all_to_all(size: float, hops: Sequence[Hop], curve: ScaledCurves | None) -> CollectiveTime:
    """The time of an all-to-all, in which every device sends to all others. Each level carries the
    part of the data that leaves the domains below it."""
    count = math.prod(hop.members for hop in hops)
    seconds = []
    for hop in hops:
        part = 1.0 - hop.inside / count
        if hop is hops[0]:
            part = (hop.members - 1) * hop.inside / count
        if hop.torus_axes:
            part = max(part, hop.members * hop.inside / count * hop.torus_axes * _side(hop) / 4)
        if hop.curve is not None:
            seconds.append(_inside("all_to_all", part * size, hop))
        else:
            seconds.append(part * size * hop.inside / hop.rate_bytes_per_s)
    latency = [0.0 if curve is not None else _ring_steps(hops[0]) * hops[0].latency_s]
    latency += [0.0 for _ in hops[1:]]
    if len(hops) > 1:
        peers = count - hops[0].members
        latency[-1] = hops[-1].latency_s * math.ceil(peers / _PEERS_AT_ONCE)
    return _time(hops, seconds, latency)


def _inside(operation: str, carried: float, hop: Hop) -> float:
    """Seconds on the innermost level for `carried` bytes per link."""
    curve = hop.curve
    if curve is None:
        return carried / hop.rate_bytes_per_s
    time_s = curve.time_s(operation, hop.members, carried)
    if curve.curves.shared_medium and hop.loaded > hop.members:
        time_s = max(time_s, curve.time_s(operation, hop.loaded, carried))
    return time_s


def _ring(operation: str, hops: Sequence[Hop]) -> list[float]:
    """Latency per level of a ring over all members: each step has the latency of the level that it
    crosses; a curve includes the steps of one domain."""
    outer = math.prod(hop.members for hop in hops)
    found = []
    for hop in hops:
        outer //= hop.members
        if hop.curve is not None:
            found.append((hop.members - 1) * (outer - 1) * hop.curve.hop_s(operation))
        else:
            found.append(_ring_steps(hop) * outer * hop.latency_s)
    return found


def _tree(hops: Sequence[Hop]) -> list[float]:
    """Latency per level of one way through a tree; a curve includes that of its domain."""
    return [
        0.0 if hop.curve is not None else math.log2(hop.members) * hop.latency_s for hop in hops
    ]


def _time(
    hops: Sequence[Hop], seconds: Sequence[float], latency: Sequence[float], passes: float = 1.0
) -> CollectiveTime:
    """The time of a ring or tree whose levels work at the same time: the slowest one counts."""

    def of(values: Sequence[float], levels: range, join: Callable[[list[float]], float]) -> float:
        mine = [v for hop, v in zip(hops, values, strict=True) if hop.level in levels]
        return join(mine) if mine else 0.0

    inner, outer, far = range(1), range(1, 2), range(2, 1 << 30)
    return CollectiveTime(
        inner_s=of(seconds, inner, max),
        outer_s=of(seconds, outer, max),
        far_s=of(seconds, far, max),
        inner_latency_s=passes * of(latency, inner, sum),
        outer_latency_s=passes * of(latency, outer, sum),
        far_latency_s=passes * of(latency, far, sum),
    )


def direct_share(group_size: int, direct_peers: int) -> float:
    """Share of a device's links that a group uses: all with a switch, or those to its peers."""
    return min(1.0, (group_size - 1) / direct_peers) if direct_peers else 1.0


def message_share(direct_peers: int, torus_axes: int) -> float:
    """Share of a device's links between two neighbors: in a torus, one of two links per axis."""
    return 1.0 / (2 * torus_axes) if torus_axes else direct_share(2, direct_peers)


def cards_shared(inside: int, sharing: int, domain_size: int, shared_by: int) -> float:
    """Devices that use one card at the same time: those of `sharing` groups with `inside` members,
    spread over the cards of a domain."""
    active = min(inside * sharing, max(domain_size, inside))
    cards = max(1.0, max(domain_size, shared_by) / shared_by)
    return min(float(shared_by), max(1.0, active / cards))


def _ring_steps(hop: Hop) -> float:
    if not hop.torus_axes:
        return hop.members - 1
    return max(1.0, hop.torus_axes * (_side(hop) - 1) / 2)


def _side(hop: Hop) -> float:
    return math.exp(math.log(hop.members) / hop.torus_axes)
