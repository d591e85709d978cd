"""The files of the catalogue as people write them: human units in the keys, a source per number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from profiles.sourced import Sourced

# Hosts and network on top of the boards where a cluster file does not say: between the measured
# nodes of eight H100 (0.28) and eight B200 (0.22) of MLPerf Training 4.1 and 5.0 (the device
# files' host_power).
OVERHEAD_POWER = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDesign:
    """How many devices a usual node (or NVLink rack, or pod) holds, and its two links.

    devices          that the inner link joins: a node's eight, an NVL72 rack's 72, a TPU pod
    host_devices     of one host where the inner link joins several (4 in an NVL72 rack), else 0
    outer_shared_by  devices that share one network card of the outer link
    inner_shared_by  devices that share one inner link: the cores of a chip
    cores            the counts of devices that software may see in one, fewest first: cores of a
                     chip, alone or joined; () where it sees the whole
    host_power       fraction of the devices' power that hosts and network draw besides
    """

    devices: int
    inner_link: str
    outer_link: str
    source: str
    outer_shared_by: int = 1
    inner_shared_by: int = 1
    cores: tuple[int, ...] = ()
    host_devices: int = 0
    host_power: Sourced | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFile:
    """A device file as people write it: human units in the keys.

    memory_gib    that the device reports (nvidia-smi's MiB / 1024), not what the vendor prints
    reserved_gib  of it that a framework cannot use: driver, context, kernels, NCCL
    """

    name: str
    vendor: str
    type: str
    aliases: tuple[str, ...] = ()
    efficiency_of: str = ""
    notes: str = ""
    memory_gib: Sourced
    reserved_gib: Sourced
    memory_bandwidth_gb_per_s: Sourced
    power_w: Sourced
    launch_us: Sourced
    peak_tflops: Mapping[str, Sourced]
    node: NodeDesign


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFile:
    """A link file as people write it."""

    name: str
    bandwidth_gb_per_s: Sourced
    latency_us: Sourced
    efficiency: Sourced
    kind: str = ""
    message_efficiency: Sourced | None = None
    direct_peers: int = 0
    torus_axes: int = 0
    notes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFile:
    """Nodes of a cluster file: `device` is a name of the catalogue."""

    count: int
    devices_per_node: int
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelFile:
    """A level of a cluster file: `link` is a name of the catalogue, or the three numbers inline."""

    name: str
    domain_size: int
    link: str | LinkFile
    oversubscription: float = 1.0
    shared_by: int = 1
    torus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """A cluster file as people write it (docs/clusters.md)."""

    name: str
    groups: tuple[GroupFile, ...]
    levels: tuple[LevelFile, ...]
    overhead_power: float = OVERHEAD_POWER
