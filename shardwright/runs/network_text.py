"""`network_of`: a source's text about its network as a `NodeNetwork`.

Sources name a link of the catalog (`eth-100`), or print a list of cards (`8x200Gb/s HDR IB per
node`), a total (`800 Gbps/node`), cards by purpose (MLPerf system files: `Storage: 2x ..., Compute:
8x ConnectX-7 IB NDR 400Gb/s`) or no number at all (`Infiniband, Ethernet`). The compute cards are
used for training. A missing rate or number of cards is taken from the usual network of the device's
node (profiles/data/devices/*.toml). Only published rows are parsed in this way: a cluster's network
is a typed value.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace

from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.catalog import get_device, get_link, link_names, node_design
from profiles.hardware.catalogue.node_network import (
    NodeNetwork,
    link_like,
    network_over,
    usual_network,
)

# One unit of a list: an optional count, words, then a rate in bits (`Gb/s`, `Gbps`, `GbE`). The
# case matters: `PCIe-NIC: 500 GB/s` (bytes) is the host's bus, not its network.
_COUNT = re.compile(r"(?<![\w.-])(\d+)\s*[xX]\s*")
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([GT])(b/s|bps|bit/s|bE\b|BASE|b\b|bit\b|\b)")
# `50 GB/s per node`: bytes, of the network only if the text names it.
_BYTE_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([GT])B/?(?:s|ps)")
_PER_NODE = re.compile(r"(?:/|per\s+)(?:node|host|server|instance)", re.IGNORECASE)
# Rate by name of generation if none is printed: infinibandta.org roadmap, 4 lanes.
_GENERATIONS = {"XDR": 800e9, "NDR": 400e9, "HDR": 200e9, "EDR": 100e9, "FDR": 56e9}
# `NDR`, or `HDR100` with its rate. A generation alone does not tell the number of cards.
_GENERATION = re.compile(r"\b([XNHEF]DR)\s?-?(\d{2,3})?\b(?!\s*G)", re.IGNORECASE)
_INFINIBAND = re.compile(r"infiniband|\bIB\b|\b[XNHEF]DR\d*\b", re.IGNORECASE)
_KINDS = (
    ("infiniband", _INFINIBAND),
    ("roce", re.compile(r"roce", re.IGNORECASE)),
    ("omni-path", re.compile(r"omni-?path|\bOPA\b", re.IGNORECASE)),
    ("efa", re.compile(r"\befa\b", re.IGNORECASE)),
    ("slingshot", re.compile(r"slingshot", re.IGNORECASE)),
    ("data-centre network", re.compile(r"\bdcn\b", re.IGNORECASE)),
    ("ethernet", re.compile(r"ethernet|GbE\b|GBASE", re.IGNORECASE)),
)
_COMPUTE = re.compile(r"compute", re.IGNORECASE)
_PURPOSES = re.compile(r"storage|management|\bNIC\b.*\bmanage", re.IGNORECASE)
# Links inside a node, or its torus, are not the network between nodes.
_INSIDE = re.compile(r"nvlink|nvswitch|\bICI\b|xgmi|infinity fabric|pcie", re.IGNORECASE)
# Maximum rate of a card; a higher one is a node's total.
_MOST_OF_A_CARD = 800e9
_NONE = ("", "none", "n/a", "nan", "unknown")


@functools.lru_cache(maxsize=1024)
def network_of(text: str, device: str, devices_per_node: int) -> NodeNetwork:
    """The network of a node of `devices_per_node` devices, from a source's text.

    The text counts the cards of a host. If hosts share one inner link (a tray of an NVL72 rack, a
    host of a TPU pod), a "node" has the cards of several hosts. Ethernet below 25 Gb/s per host
    with accelerators is a management network, so the device's usual network is assumed.

    Raises UnknownNameError for an unknown device and for text without a network, InputError for a
    rate of 0.

    >>> network_of("Omni-Path 4x100Gb/s per node", "a100-sxm-80gb", 8).bytes_per_s_per_node
    50000000000.0
    """
    usual = usual_network(device, devices_per_node)
    words = text.strip().lower()
    if words in _NONE:
        return usual
    name = re.sub(r"[\s_]+", "-", words)
    if name in link_names():
        link = get_link(name)
        return network_over(link, usual.cards, source=text) if link.kind else usual
    kind = _kind(text)
    found = _parsed(text)
    if found is None:
        if kind == "network":
            if _INSIDE.search(text):
                return usual
            outer = [link for link in link_names() if get_link(link).kind]
            known = [*(kind for kind, _ in _KINDS), *_GENERATIONS, *outer]
            raise UnknownNameError("network", text, known)
        # Slow plain Ethernet is a management network.
        if kind == "ethernet":
            return _noting_management(usual, text)
        source = f"{text!r} prints no rate; {usual.source}"
        return _of_kind(usual, kind, usual.bytes_per_s_per_node, usual.cards, source, assumed=True)
    bits_per_s, cards, counted = found
    if not bits_per_s:
        raise InputError(
            f"the network {text!r} has no bandwidth; leave inter_node_link empty if it is unknown"
        )
    if kind == "ethernet" and bits_per_s < 25e9:
        return _noting_management(usual, text)
    if not counted and bits_per_s <= _MOST_OF_A_CARD:
        source = f"{text!r} prints no number of cards; {usual.source}"
        rate = bits_per_s / 8 * usual.cards
        return _of_kind(usual, kind, rate, usual.cards, source, assumed=True)
    hosts = max(1, devices_per_node // _host_devices(device, devices_per_node))
    return _of_kind(usual, kind, bits_per_s / 8 * hosts, cards * hosts, text)


def _of_kind(
    usual: NodeNetwork,
    kind: str,
    bytes_per_s: float,
    cards: int,
    source: str,
    *,
    assumed: bool = False,
) -> NodeNetwork:
    """A network of a kind (the device's usual one if ""), with latency and efficiency of the
    catalog's link of that kind that is nearest in rate."""
    kind = usual.kind if kind == "network" else kind
    rate = bytes_per_s / (cards or usual.cards)
    link = link_like(kind, rate)
    found = usual if link is None else network_over(link, 1, source=source)
    return replace(
        found,
        kind=kind,
        bytes_per_s_per_node=bytes_per_s,
        cards=cards,
        source=source,
        assumed=assumed,
    )


def _noting_management(usual: NodeNetwork, text: str) -> NodeNetwork:
    return replace(usual, source=f"{text!r} is taken as its management network; {usual.source}")


def _host_devices(device: str, devices_per_node: int) -> int:
    design = node_design(get_device(device).name)
    if design.host_devices:
        return design.host_devices
    # On a TPU pod, the chips of a host share one card.
    if get_device(device).type == "tpu":
        return design.outer_shared_by
    return devices_per_node


def _parsed(text: str) -> tuple[float, int, bool] | None:
    """Bits per second of a node's compute cards, their number (0: a total), and whether the text
    has either."""
    cards = []
    for part in _compute_parts(text):
        rate = _rate(part)
        if rate is None:
            continue
        counted = _COUNT.search(part)
        if counted is None and _PER_NODE.search(part):
            return rate, 0, True
        cards.append((int(counted.group(1)) if counted else 1, rate, counted is not None))
    if not cards:
        return None
    # Several kinds of card without a purpose: training takes the fastest set.
    count, rate, known = max(cards, key=lambda card: card[0] * card[1])
    return count * rate, count, known


def _compute_parts(text: str) -> list[str]:
    """The parts of a list that are marked for compute; all parts if none is."""
    parts = [part for part in re.split(r"[,;+]\s*", _join_purposes(text)) if part.strip()]
    compute = [part for part in parts if _COMPUTE.search(part)]
    if compute:
        return compute
    others = [part for part in parts if not _PURPOSES.search(part)]
    return others or parts


def _join_purposes(text: str) -> str:
    """The text with joined purposes (`Storage+Management`, `Storage&Compute`) as one word each."""
    return re.sub(r"(?<=[A-Za-z])\s*[+&]\s*(?=[A-Z][a-z])", "&", text)


def _rate(part: str) -> float | None:
    found = _RATE.search(part)
    # "100GbE InfiniBand" is two networks; the Ethernet's rate is not the other's.
    beside = found is not None and found.group(3) in ("bE", "BASE") and _INFINIBAND.search(part)
    if found is not None and not beside:
        return float(found.group(1)) * (1e12 if found.group(2) == "T" else 1e9)
    generation = _GENERATION.search(part)
    if generation is not None:
        name, lanes = generation.groups()
        return float(lanes) * 1e9 if lanes else _GENERATIONS[name.upper()]
    in_bytes = _BYTE_RATE.search(part) if _PER_NODE.search(part) else None
    if in_bytes is not None:
        return 8 * float(in_bytes.group(1)) * (1e12 if in_bytes.group(2) == "T" else 1e9)
    return None


def _kind(text: str) -> str:
    parts = " ".join(_compute_parts(text))
    for name, pattern in _KINDS:
        if pattern.search(parts):
            return name
    return "network"
