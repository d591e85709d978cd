"""A cluster: groups of equal nodes, and the levels of interconnect between their devices.

Devices are numbered like ranks: node by node, in the order of the groups. A level connects the
devices of a domain, `domain_size` consecutive devices, by its link (8 on NVLink in a node, 72 in an
NVL72 rack, all of them over the spine). Traffic between two devices uses the first level with both
in one domain.
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

    domain_size       devices per domain
    oversubscription  sum of the devices' link bandwidths over the level's total bandwidth (1 = full
                      bisection)
    torus             devices per axis of a torus (`[4, 4, 8]`), innermost axis first in the order
                      of device numbers; () with switches
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

    name           the user's text (`4x8xh100-sxm`) or the file's name
    overhead_power power of hosts, network and cooling relative to that of the devices
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
        # Clusters are keys of caches: hashing the levels' measured points would be slow.
        return hash((self.name, self.groups))

    @property
    def num_devices(self) -> int:
        return sum(group.count * group.devices_per_node for group in self.groups)

    @property
    def num_nodes(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def machine(self) -> dict[str, str]:
        """Properties that identify a machine of this cluster: the types of its devices, and the
        fingerprints of the measured ones (profiles.hardware.probe.fingerprint)."""
        devices = [group.device for group in self.groups]
        found = {"type": "+".join(sorted({device.type for device in devices}))}
        for device in devices:
            found |= device.fingerprint
        return found

    @property
    def homogeneous(self) -> bool:
        """True if all devices are of one type."""
        return len({group.device.name for group in self.groups}) == 1

    def device_at(self, index: int) -> Device:
        """The device with number `index`; raises InputError outside the cluster."""
        first = 0
        for group in self.groups:
            first += group.count * group.devices_per_node
            if 0 <= index < first:
                return group.device
        raise InputError(
            f"cluster {self.name} has devices 0 to {self.num_devices - 1}, not {index}"
        )

    def level_between(self, indices: tuple[int, ...]) -> Level:
        """The innermost level with all of `indices` (two or more devices) in one domain."""
        for level in self.levels:
            if len({index // level.domain_size for index in indices}) == 1:
                return level
        raise InputError(f"cluster {self.name}: devices {indices} are not connected")
