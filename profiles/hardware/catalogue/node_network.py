"""`NodeNetwork`: the network of a node, that is of one group of devices on an inner link."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from profiles.hardware.catalogue.catalog import (
    base_of,
    get_device,
    get_link,
    link_names,
    node_design,
)
from profiles.hardware.catalogue.cluster import Level
from profiles.hardware.catalogue.link import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNetwork:
    """The network between nodes, per node.

    kind                  protocol: `infiniband`, `roce`, `ethernet`, ...; "" if unknown
    bytes_per_s_per_node  of all cards, one direction, nominal (without efficiency)
    cards                 ports per node, 0 if only the total rate is known
    latency_s             of one message between two nodes
    efficiency            share of the rate that large collectives reach
    message_efficiency    share for one large message alone
    source                the text or file with these values
    assumed               the device's usual network, because the text has no number
    """

    kind: str
    bytes_per_s_per_node: float
    cards: int
    latency_s: float
    efficiency: float
    message_efficiency: float
    source: str
    assumed: bool = False

    @property
    def words(self) -> str:
        """A description, for a list of defaults."""
        cards = f"{self.cards} cards, " if self.cards else ""
        kind = self.kind or "of no known kind"
        return f"network {kind}: {cards}{self.bytes_per_s_per_node / 1e9:g} GB/s per node"

    def faster(self, times: float) -> NodeNetwork:
        """The same network at a multiple of its rate."""
        return replace(self, bytes_per_s_per_node=times * self.bytes_per_s_per_node)


def network_over(link: Link, cards: float, *, source: str, assumed: bool = False) -> NodeNetwork:
    """The network of nodes with this number of cards of a link."""
    message = link.message_efficiency or link.efficiency
    return NodeNetwork(
        kind=link.kind,
        bytes_per_s_per_node=link.bandwidth_bytes_per_s.value * cards,
        cards=max(1, round(cards)),
        latency_s=link.latency_s.value,
        efficiency=link.efficiency.value,
        message_efficiency=min(message.value, link.efficiency.value),
        source=source,
        assumed=assumed,
    )


@functools.cache
def usual_network(device: str, node_devices: int) -> NodeNetwork:
    """The device's usual link between nodes: one card per device, or per `outer_shared_by`
    devices."""
    name = get_device(device).name
    design = node_design(name)
    cards = max(1, node_devices // design.outer_shared_by)
    source = f"profiles/data/devices/{base_of(name)}.toml: node.outer_link"
    return network_over(get_link(design.outer_link), cards, source=source, assumed=True)


def network_of_level(level: Level, node_devices: int) -> NodeNetwork:
    """A cluster's level as the network of its nodes."""
    cards = node_devices / level.link.shared_by
    found = network_over(level.link, cards, source=f"level {level.name}: {level.link.name}")
    return found.faster(1.0 / level.oversubscription)


@functools.cache
def link_like(kind: str, card_bytes_per_s: float) -> Link | None:
    """The catalog's link of a kind with the nearest rate; None without a link of that kind."""
    links = [link for name in link_names() if (link := get_link(name)).kind == kind]
    return min(
        links,
        key=lambda link: abs(math.log(link.bandwidth_bytes_per_s.value / card_bytes_per_s)),
        default=None,
    )
