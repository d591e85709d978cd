"""The links of a run by level, and the time of a collective or send over them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from profiles.hardware.catalogue.catalog import get_device, get_link, node_design
from profiles.hardware.catalogue.node_network import NodeNetwork
from profiles.hardware.kernels.collective_curve import ScaledCurves, curves_on
from simulator.collectives import (
    NOTHING,
    CollectiveTime,
    Hop,
    collective,
    direct_share,
    message_share,
)
from simulator.training_run.messages.rank_group import RankGroup, torus_share
from simulator.training_run.run.training_run import NetworkLevel, TrainingRun

# Unit of latencies: InfiniBand's (profiles/data/links/ib-ndr.toml). A link with twice its latency
# counts two steps per message.
STEP_S = 12e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Links between the devices of a run.

    inner_*       of a device's link inside a node: bandwidth x efficiency, latency of a message
    direct_peers  neighbors that share its cables, 0 behind a switch;  torus_axes  axes of a torus
    curve         measured collectives inside a node, or None
    torus         chips per axis if a node is a torus, otherwise ()
    outer         network between nodes;  far  levels beyond it
    """

    node_devices: int
    inner_bytes_per_s: float
    inner_latency_s: float
    outer: NodeNetwork
    far: tuple[NetworkLevel, ...] = ()
    direct_peers: int = 0
    torus_axes: int = 0
    curve: ScaledCurves | None = None
    torus: tuple[int, ...] = ()

    @property
    def outer_bytes_per_s(self) -> float:
        """One device's share of its node's network bandwidth, at the efficiency of collectives."""
        return self.outer.bytes_per_s_per_node * self.outer.efficiency / self.node_devices

    @property
    def outer_message_bytes_per_s(self) -> float:
        """One device's share of its node's network bandwidth, at the efficiency of one message."""
        reached = self.outer.bytes_per_s_per_node * self.outer.message_efficiency
        return reached / self.node_devices


def links_of(run: TrainingRun) -> Links:
    """The links of a run: measured curves, or rate and efficiency, inside a node; rate and
    efficiency of the network between nodes."""
    device = get_device(run.device)
    design = node_design(run.device)
    inner = get_link(design.inner_link)
    usual = inner.bandwidth_bytes_per_s.value * inner.efficiency.value / design.inner_shared_by
    rate = run.inner_bytes_per_s or usual
    measured = not (run.torus or run.inner_bytes_per_s)
    return Links(
        node_devices=run.node_devices,
        inner_bytes_per_s=rate,
        inner_latency_s=inner.latency_s.value,
        outer=run.node_network,
        far=run.far_levels,
        direct_peers=inner.direct_peers if measured else 0,
        torus_axes=inner.torus_axes if measured else 0,
        curve=curves_on(device.name, inner.name, rate, inner.latency_s.value) if measured else None,
        torus=run.torus,
    )


def hops_of(group: RankGroup, links: Links) -> tuple[Hop, ...]:
    """The levels of links that a group spans, innermost first. All groups of this kind communicate
    at the same time, so each device has an equal share of the network cards."""
    ranks = group.ranks
    inside = group.within(links.node_devices)
    hops = []
    if inside > 1:
        rate = links.inner_bytes_per_s * direct_share(inside, links.direct_peers)
        hops.append(
            Hop(
                members=inside,
                inside=1,
                rate_bytes_per_s=rate * (torus_share(group, links.torus) if links.torus else 1.0),
                message_bytes_per_s=links.inner_bytes_per_s
                * message_share(links.direct_peers, links.torus_axes),
                latency_s=links.inner_latency_s,
                torus_axes=links.torus_axes,
                curve=links.curve,
                loaded=links.node_devices,
            )
        )
    if ranks == inside:
        return tuple(hops)
    parts = [max(inside, group.within(level.part_devices)) for level in links.far]
    above = [*parts, ranks]
    hops.append(
        Hop(
            members=above[0] // inside,
            inside=inside,
            rate_bytes_per_s=links.outer_bytes_per_s * inside,
            message_bytes_per_s=links.outer_message_bytes_per_s,
            latency_s=links.outer.latency_s,
            level=1,
        )
    )
    for place, level in enumerate(links.far):
        if parts[place] < ranks:
            rate = level.bytes_per_s_per_device
            hops.append(
                Hop(
                    members=above[place + 1] // parts[place],
                    inside=parts[place],
                    rate_bytes_per_s=rate * parts[place],
                    message_bytes_per_s=rate,
                    latency_s=level.latency_s,
                    level=2 + place,
                )
            )
    return tuple(hops)


def moved(operation: str, size_bytes: float, group: RankGroup, links: Links) -> CollectiveTime:
    """Time of a collective of a group; for an all-to-all `size_bytes` is sent by each rank."""
    if group.ranks < 2:
        return NOTHING
    return collective(operation, size_bytes, hops_of(group, links))


def sent(size_bytes: float, links: Links, *, crosses_nodes: bool) -> CollectiveTime:
    """Time of one message from a device to another, in its node or in the next one."""
    apart = links.node_devices if crosses_nodes else 1
    near = replace(links, node_devices=links.node_devices if crosses_nodes else 2, far=(), torus=())
    return collective("send", size_bytes, hops_of(RankGroup(((2, apart),)), near))


def steps(time: CollectiveTime) -> tuple[float, float]:
    """Latencies inside nodes and between them, in units of `STEP_S`."""
    return time.inner_latency_s / STEP_S, time.outer_latency_s / STEP_S
