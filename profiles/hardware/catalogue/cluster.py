"""A cluster: groups of equal nodes, and the levels of interconnect that join their devices.

Devices are numbered as ranks are placed: node by node, in the order of the groups. A level joins
consecutive devices: `domain_size` devices of one domain reach each other through the level's link
(8 on NVLink in a node, 72 in an NVL72 rack, all of them over the spine). The first level whose
domain holds two devices carries the traffic between them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from profiles.errors import InputError
from profiles.hardware.catalogue.device import Device
from profiles.hardware.catalogue.link import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """`count` equal nodes of `devices_per_node` devices each."""

    count: int
    devices_per_node: int
    device: Device

    def __post_init__(self) -> None:
        if self.count < 1 or self.devices_per_node < 1:
            raise InputError(
                f"a node group needs at least one node of one device, got {self.count} x "
                f"{self.devices_per_node} {self.device.name}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of interconnect, inner levels first.

    domain_size       devices that the level joins
    oversubscription  how many times less than the sum of its devices' links the level carries
                      when all of them cross it at once (1 = full bisection)
    torus             devices per axis where the level is a torus (`[4, 4, 8]`), in the order of the
                      devices' numbers, the innermost first; () behind switches
    """

    name: str
    domain_size: int
    link: Link
    oversubscription: float = 1.0
    torus: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.domain_size < 1:
            raise InputError(f"level {self.name}: domain_size must be 1 or more")
        if self.torus and (min(self.torus) < 1 or math.prod(self.torus) != self.domain_size):
            raise InputError(
                f"level {self.name}: torus {list(self.torus)} holds {math.prod(self.torus)} "
                f"devices, its domain_size is {self.domain_size}"
            )
        if not self.oversubscription >= 1.0:
            raise InputError(
                f"level {self.name}: oversubscription must be 1 or more, is {self.oversubscription}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes and levels.

    name           as the user wrote it (`4x8xh100-sxm`, or the file's name)
    overhead_power fraction of the devices' power that hosts, network and cooling add
    """

    name: str
    groups: tuple[NodeGroup, ...]
    levels: tuple[Level, ...]
    overhead_power: float = 0.0

    def __post_init__(self) -> None:
        if not self.groups:
            raise InputError(f"cluster {self.name} has no nodes")
        if self.num_devices > 1 and not self.levels:
            raise InputError(
                f"cluster {self.name} has {self.num_devices} devices and no level that joins them"
            )
        sizes = [level.domain_size for level in self.levels]
        if sizes != sorted(sizes) or len(set(sizes)) != len(sizes):
            raise InputError(
                f"cluster {self.name}: levels must grow outwards, their domain sizes are {sizes}"
            )
        if self.levels and sizes[-1] < self.num_devices:
            raise InputError(
                f"cluster {self.name} is not connected: its outermost level "
                f"{self.levels[-1].name!r} joins {sizes[-1]} of {self.num_devices} devices"
            )

    def __hash__(self) -> int:
        # Clusters are keys of caches: the levels' measured points are left to the comparison.
        return hash((self.name, self.groups))

    @property
    def num_devices(self) -> int:
        return sum(group.count * group.devices_per_node for group in self.groups)

    @property
    def num_nodes(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def machine(self) -> dict[str, str]:
        """What a machine must show to be this cluster: the types of its devices, and the
        fingerprint of each that was measured (profiles.hardware.probe.fingerprint)."""
        devices = [group.device for group in self.groups]
        shown = {"type": "+".join(sorted({device.type for device in devices}))}
        for device in devices:
            shown |= device.fingerprint
        return shown

    @property
    def homogeneous(self) -> bool:
        """True where all devices are of one type."""
        return len({group.device.name for group in self.groups}) == 1

    def device_at(self, index: int) -> Device:
        """The device with number `index`; raises InputError outside the cluster."""
        first = 0
        for group in self.groups:
            first += group.count * group.devices_per_node
            if 0 <= index < first:
                return group.device
        raise InputError(f"cluster {self.name} has {self.num_devices} devices, asked for {index}")

    def level_between(self, indices: tuple[int, ...]) -> Level:
        """The innermost level whose one domain holds all of `indices` (two or more devices)."""
        for level in self.levels:
            if len({index // level.domain_size for index in indices}) == 1:
                return level
        raise InputError(f"cluster {self.name}: devices {indices} are not connected")
