"""Seconds of one collective from plain numbers: no cluster is built, a call takes microseconds.

A group lies on levels (`Hop`, inner first). Where the innermost was measured (collective_curve),
its curve gives the part inside a domain; formulas give the rest, and all of it where nothing was:

    all_gather, reduce_scatter   (n - 1) a + (n - 1) / n  S / B
    all_reduce                   the sum of the two, or a tree: 2 log2(n) a + 2 S / B
    broadcast                    log2(n) a + S / B          (pipelined tree)
    all_to_all                   (n - 1) a + (n - 1) / n  S / B
    send                         a + S / B
    barrier                      2 log2(n) a

S size of the full buffer, n devices, a latency of one message, B bandwidth per device. Rings and
trees: Thakur, Rabenseifner and Gropp, Int. J. High Perf. Comp. Appl. 19(1), 2005, section 4; the
factors (n - 1) / n: nccl-tests, doc/PERFORMANCE.md; NCCL takes the tree where it is faster (NVIDIA
developer blog, "Massively Scale Your Deep Learning Training with NCCL 2.4", 2019). NCCL itself
counts 2 (n1 - 1 + log2(n2)) hops of a tree and as many of a ring as above (src/graph/tuning.cc).

A group that spans several domains of a level (n1 members in each of n2) runs as NCCL's rings do:
through all members of a domain before leaving it, one ring per network card, so that the n1
members' links to the outer level carry it together. B is the least over the levels of
    inner level   its bandwidth x efficiency
    outer level   n1 x bandwidth x efficiency / devices per card that are on / oversubscription
and `a` of each hop is that of the level that it crosses. With a curve c(n1, bytes per link) inside:

    ring                max(c, bytes / B) + latency of the n2 - 1 hops between domains
                        + (n1 - 1) (n2 - 1) hops inside, which c does not hold
    tree (all_reduce)   max(c, 2 S / B) + 2 log2(n2) a
    all_to_all          max(c of the part inside, the part outside / B) + a per _PEERS_AT_ONCE peers

On a torus of d axes of k devices a ring along each axis has d (k - 1) / 2 hops both ways round, and
all_to_all passes a mean of k / 4 links per axis: S d k / 4 / B where that is more than (n - 1) / n
(Austin et al., How to Scale Your Model, 2025, chapter 3: one axis).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from profiles.hardware.collective_curve import ScaledCurves, bus_share

# Peers that NCCL's grouped sends serve beside each other (its p2p schedule, src/enqueue.cc, eight
# per round up to 2.22). That rounds follow each other at one latency each is assumed.
_PEERS_AT_ONCE = 8
_BARRIER_BYTES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One level as a group sees it.

    members             parts of the group that the level joins in one of its domains
    inside              devices of the group in each part
    rate_bytes_per_s    that a ring position gets here, all cards of a part together
    message_bytes_per_s that one message gets
    curve               measured times, on the innermost level only
    loaded              devices of the domain that communicate at once, this group's and others'
    """

    members: int
    inside: int
    rate_bytes_per_s: float
    message_bytes_per_s: float
    latency_s: float
    torus_axes: int = 0
    curve: ScaledCurves | None = None
    loaded: int = 0


def direct_share(group_size: int, direct_peers: int) -> float:
    """Share of a device's links that a group uses: all behind a switch, else those to its peers."""
    return min(1.0, (group_size - 1) / direct_peers) if direct_peers else 1.0


def message_share(direct_peers: int, torus_axes: int) -> float:
    """Share of a device's links between two neighbours: one of a torus's two per axis."""
    return 1.0 / (2 * torus_axes) if torus_axes else direct_share(2, direct_peers)


def cards_shared(inside: int, sharing: int, domain_size: int, shared_by: int) -> float:
    """Devices on one card that are on at once: those of `sharing` groups with `inside` members,
    spread over the cards of a domain."""
    active = min(inside * sharing, max(domain_size, inside))
    cards = max(1.0, max(domain_size, shared_by) / shared_by)
    return min(float(shared_by), max(1.0, active / cards))


def time_over(operation: str, size: float, hops: tuple[Hop, ...]) -> float:
    """Seconds of an operation on a group of two or more over its levels (module docstring)."""
    if hops[0].curve is not None:
        return _with_curve(operation, size, hops, hops[0].curve)
    count = math.prod(hop.members for hop in hops)
    share = (count - 1) / count
    rate = min(hop.rate_bytes_per_s for hop in hops)
    # Hops of a ring over all members, each with the latency of the level that it crosses.
    ring_s = tree_s = 0.0
    outer = count
    for hop in hops:
        outer //= hop.members
        ring_s += _ring_steps(hop) * outer * hop.latency_s
        tree_s += math.log2(hop.members) * hop.latency_s
    if operation == "all_reduce":
        return min(2 * ring_s + 2 * share * size / rate, 2 * tree_s + 2 * size / rate)
    if operation in ("all_gather", "reduce_scatter"):
        return ring_s + share * size / rate
    if operation == "broadcast":
        return tree_s + size / rate
    if operation == "all_to_all":
        return ring_s + _slowest_part(size, hops)
    if operation == "barrier":
        return 2 * tree_s
    return tree_s + size / min(hop.message_bytes_per_s for hop in hops)


def _with_curve(operation: str, size: float, hops: tuple[Hop, ...], curve: ScaledCurves) -> float:
    first, beyond = hops[0], hops[1:]
    if operation == "barrier":
        operation, size = "all_reduce", _BARRIER_BYTES
    if operation == "send" and not beyond:
        return _inside(curve, "send", first, size)
    if operation == "send":
        latency_s = sum(hop.latency_s for hop in beyond)
        return latency_s + size / min(hop.message_bytes_per_s for hop in beyond)
    count = math.prod(hop.members for hop in hops)
    if operation == "all_to_all":
        inside_s = _inside(curve, operation, first, (first.members - 1) / count * size)
        if not beyond:
            return inside_s
        peers = count - first.members
        latency_s = beyond[-1].latency_s * math.ceil(peers / _PEERS_AT_ONCE)
        return max(inside_s, _slowest_part(size, hops)) + latency_s
    carried = bus_share(operation, count) * size
    inside_s = _inside(curve, operation, first, carried)
    if not beyond:
        return inside_s
    rate = min(hop.rate_bytes_per_s for hop in beyond)
    domains = count // first.members
    passes = 2 if operation == "all_reduce" else 1
    ring_s = (first.members - 1) * (domains - 1) * curve.hop_s(operation)
    tree_s, outer = 0.0, domains
    for hop in beyond:
        outer //= hop.members
        ring_s += (hop.members - 1) * outer * hop.latency_s
        tree_s += math.log2(hop.members) * hop.latency_s
    if operation == "broadcast":
        return max(inside_s, size / rate) + tree_s
    time_s = max(inside_s, carried / rate) + passes * ring_s
    if operation == "all_reduce":
        time_s = min(time_s, max(inside_s, 2 * size / rate) + 2 * tree_s)
    return time_s


def _inside(curve: ScaledCurves, operation: str, hop: Hop, carried: float) -> float:
    time_s = curve.time_s(operation, hop.members, carried)
    if curve.curves.shared_medium and hop.loaded > hop.members and operation != "send":
        time_s = max(time_s, curve.time_s(operation, hop.loaded, carried))
    return time_s


def _ring_steps(hop: Hop) -> float:
    if not hop.torus_axes:
        return hop.members - 1
    side = _side(hop)
    return max(1.0, hop.torus_axes * (side - 1) / 2)


def _side(hop: Hop) -> float:
    return math.exp(math.log(hop.members) / hop.torus_axes)


def _slowest_part(size: float, hops: tuple[Hop, ...]) -> float:
    """Every device sends to all others itself: the outer level carries each one's own part."""
    slowest, beyond = 0.0, 1.0
    for hop in reversed(hops):
        part = beyond * (hop.members - 1) / hop.members
        if hop.torus_axes:
            side = _side(hop)
            part = max(part, beyond * hop.torus_axes * side / 4)
        if hop.curve is None:
            slowest = max(slowest, part * size * hop.inside / hop.rate_bytes_per_s)
        beyond /= hop.members
    return slowest
