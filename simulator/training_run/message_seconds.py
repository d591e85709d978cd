"""Seconds of a run's collectives, before any coefficient.

A group's ranks lie side by side in nodes, `per_node` of them in each. Within nodes a collective
takes what was measured on such a group (nccl-tests, profiles/data/collectives: the rate grows with
the message and the group, latency is inside); where nothing was, a ring moves (n - 1) / n of the
data over each device's own link at its rate, plus latency steps. Between nodes every node sends as
much as one rank of its ring, and a group has the adapters of the devices that it occupies (NCCL
builds one ring per adapter). All-reduce is a reduce-scatter and an all-gather (Thakur et al.,
IJHPCA 19(1), 2005, sections 4.1 to 4.4). Both parts are kept apart, because each kind of link has a
coefficient of its own, and so are the latency steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from profiles.hardware.collective_curve import ScaledCurves
from simulator.training_run.rank_group import RankGroup
from simulator.training_run.torus import torus_share

# How often a ring sends the tensor, less each rank's own share.
PASSES = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """One direction's rate of a device's inner link, and of its share of the node's adapters.

    inner_bytes_per_s  bandwidth x efficiency of the link
    curve              what was measured of collectives inside a node, or None
    torus              chips per axis of a node that is a torus, () for none
    """

    inner_bytes_per_s: float
    outer_bytes_per_s: float
    node_devices: int
    curve: ScaledCurves | None = None
    torus: tuple[int, ...] = ()

    def inside_s(self, operation: str, ranks: int, bus_bytes: float) -> float:
        """Seconds of a collective inside a node when each link carries `bus_bytes`."""
        if self.curve is not None:
            return self.curve.time_s(operation, ranks, bus_bytes)
        return bus_bytes / self.inner_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Seconds over inner and outer links, and the latency steps of each; `far_s` at the slowest
    level beyond those, latency and all (far_seconds.py)."""

    inner_s: float = 0.0
    outer_s: float = 0.0
    inner_steps: float = 0.0
    outer_steps: float = 0.0
    far_s: float = 0.0

    def __add__(self, other: Messages) -> Messages:
        return Messages(
            inner_s=self.inner_s + other.inner_s,
            outer_s=self.outer_s + other.outer_s,
            inner_steps=self.inner_steps + other.inner_steps,
            outer_steps=self.outer_steps + other.outer_steps,
            far_s=self.far_s + other.far_s,
        )

    def __mul__(self, factor: float) -> Messages:
        return Messages(
            inner_s=self.inner_s * factor,
            outer_s=self.outer_s * factor,
            inner_steps=self.inner_steps * factor,
            outer_steps=self.outer_steps * factor,
            far_s=self.far_s * factor,
        )


def collective(
    operation: str,
    size_bytes: float,
    ranks: int,
    links: Links,
    *,
    stride: int = 1,
    group: RankGroup | None = None,
) -> Messages:
    """One collective of `ranks` ranks that are `stride` devices apart.

    size_bytes  the whole tensor of an all-reduce, all-gather or reduce-scatter; what one rank
                sends in all of an all-to-all
    group       where the ranks lie, if not side by side at one stride or on a torus, of which they
                use the links of the axes that they span
    """
    if ranks < 2 or size_bytes <= 0:
        return Messages()
    per_node = max(1, min(ranks, links.node_devices // max(1, stride)))
    if group is not None:
        per_node = group.within(links.node_devices)
        if links.torus:
            share = torus_share(group, links.torus)
            links = replace(links, inner_bytes_per_s=links.inner_bytes_per_s * share)
    passes = PASSES[operation]
    nodes = -(-ranks // per_node)
    moved = passes * size_bytes * (ranks - 1) / ranks
    if operation == "all_to_all":
        outside = size_bytes * (ranks - per_node) / ranks
        inside = size_bytes * (per_node - 1) / ranks
        return Messages(
            inner_s=links.inside_s(operation, per_node, inside) if inside else 0.0,
            outer_s=outside / links.outer_bytes_per_s,
            inner_steps=1.0 if per_node > 1 else 0.0,
            outer_steps=1.0 if nodes > 1 else 0.0,
        )
    if nodes == 1:
        return Messages(
            inner_s=links.inside_s(operation, ranks, moved),
            inner_steps=passes * (ranks - 1) ** 0.5 if links.curve is None else 0.0,
        )
    # A ring through every node leaves it with `per_node` adapters side by side.
    outer = moved / (per_node * links.outer_bytes_per_s)
    inner = links.inside_s(operation, per_node, moved) if per_node > 1 else 0.0
    return Messages(
        inner_s=max(0.0, inner - outer) if inner > outer else 0.0,
        outer_s=outer,
        outer_steps=passes * nodes**0.5,
    )


def send(size_bytes: float, *, crosses_nodes: bool, links: Links) -> Messages:
    """One message from device to device."""
    if crosses_nodes:
        return Messages(outer_s=size_bytes / links.outer_bytes_per_s, outer_steps=1.0)
    return Messages(inner_s=size_bytes / links.inner_bytes_per_s, inner_steps=1.0)
