"""`NodeNetwork`: what leaves a node, that is one group of devices that the inner link joins."""

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
    """The network between nodes as one node sees it.

    kind                  protocol: `infiniband`, `roce`, `ethernet`, ...; "" where it has none
    bytes_per_s_per_node  all cards together, one direction, as printed (no efficiency)
    cards                 ports per node, 0 where only their total is known
    latency_s             of one message between two nodes
    efficiency            share of the rate that large collectives reach;  message_efficiency  that
                          one large message alone reaches
    source                the words that were read, or the file that was used in their place
    assumed               the words hold no number: this is the device's usual network
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
        """The network in words, for a list of defaults."""
        cards = f"{self.cards} cards, " if self.cards else ""
        kind = self.kind or "of no known kind"
        return f"network {kind}: {cards}{self.bytes_per_s_per_node / 1e9:g} GB/s per node"

    def faster(self, times: float) -> NodeNetwork:
        """The same network at a multiple of its rate."""
        return replace(self, bytes_per_s_per_node=times * self.bytes_per_s_per_node)


def network_over(link: Link, cards: float, *, source: str, assumed: bool = False) -> NodeNetwork:
    """So many cards of a link on each node."""
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
    """The device's usual outer link: one card per device, or per `outer_shared_by` devices."""
    name = get_device(device).name
    design = node_design(name)
    cards = max(1, node_devices // design.outer_shared_by)
    source = f"profiles/data/devices/{base_of(name)}.toml: node.outer_link"
    return network_over(get_link(design.outer_link), cards, source=source, assumed=True)


def network_of_level(level: Level, node_devices: int) -> NodeNetwork:
    """A cluster's level as the network that leaves its nodes."""
    cards = node_devices / level.link.shared_by
    found = network_over(level.link, cards, source=f"level {level.name}: {level.link.name}")
    return found.faster(1.0 / level.oversubscription)


@functools.cache
def link_like(kind: str, card_bytes_per_s: float) -> Link | None:
    """The catalogue's link of a kind whose rate is nearest; None where none is of that kind."""
    links = [link for name in link_names() if (link := get_link(name)).kind == kind]
    return min(
        links,
        key=lambda link: abs(math.log(link.bandwidth_bytes_per_s.value / card_bytes_per_s)),
        default=None,
    )
