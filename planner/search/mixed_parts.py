"""Parts and views of a mixed cluster on which plans with ranks all alike can be searched.

The ordinary search prices a pipeline rank by the first of its devices, so it is asked only where
all devices of a rank are of one type: on the devices of one type, or on all of them with stages
that keep to one type. For equal shares over unlike devices there is a third view: all devices as
slow, and with as little memory, as the least of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from planner.axes import Axes
from planner.divisors import divisors
from profiles.hardware.catalogue.cluster import Cluster, Level, NodeGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A cluster and a space for an ordinary search.

    title    what it is, as people read it;  devices  name of each of its devices
    exact    whether the search prices its plans as they are; else they are faster than it says
    """

    title: str
    cluster: Cluster
    space: Axes
    devices: tuple[str, ...]
    exact: bool = True


def parts_of(cluster: Cluster, space: Axes, slowest: str) -> tuple[Part, ...]:
    """Every part: each type alone, all with stages of one type, all as slow as the slowest."""
    names = list(dict.fromkeys(group.device.name for group in cluster.groups))
    every = tuple(group.device.name for group in cluster.groups for _ in range(_devices_in(group)))
    found = [
        Part(
            title=f"{name} alone",
            cluster=only(cluster, name),
            space=space,
            devices=tuple(device for device in every if device == name),
        )
        for name in names
    ]
    whole = one_type_stages(cluster, space)
    if whole is not None:
        found.append(
            Part(title="all, each stage of one type", cluster=cluster, space=whole, devices=every)
        )
    found.append(
        Part(
            title="all with equal shares",
            cluster=levelled(cluster, slowest),
            space=space,
            devices=every,
            exact=False,
        )
    )
    return tuple(found)


def _devices_in(group: NodeGroup) -> int:
    return group.count * group.devices_per_node


def only(cluster: Cluster, name: str) -> Cluster:
    """The nodes of one type, on the levels that they span."""
    groups = tuple(group for group in cluster.groups if group.device.name == name)
    count = sum(_devices_in(group) for group in groups)
    levels: list[Level] = []
    for level in cluster.levels:
        if levels and levels[-1].domain_size >= count:
            break
        levels.append(level)
    return replace(
        cluster, name=f"{cluster.name}: {name} only", groups=groups, levels=tuple(levels)
    )


def one_type_stages(cluster: Cluster, space: Axes) -> Axes | None:
    """The space with those pp whose ranks' devices are all of one type; None where no pp is."""
    names = [group.device.name for group in cluster.groups]
    ends, end = [], 0
    for index, group in enumerate(cluster.groups):
        end += _devices_in(group)
        if index + 1 == len(names) or names[index + 1] != names[index]:
            ends.append(end)
    common = math.gcd(*ends)
    allowed = tuple(
        pp
        for pp in divisors(cluster.num_devices)
        if common % (cluster.num_devices // pp) == 0 and space.allows("pp", pp)
    )
    return replace(space, pp=allowed) if allowed else None


def levelled(cluster: Cluster, slowest: str) -> Cluster:
    """Every device as slow as the type `slowest`, with the least memory of any."""
    least = min((group.device for group in cluster.groups), key=lambda device: device.usable_bytes)
    slow = next(group.device for group in cluster.groups if group.device.name == slowest)
    device = replace(slow, memory_bytes=least.memory_bytes, reserved_bytes=least.reserved_bytes)
    groups = tuple(replace(group, device=device) for group in cluster.groups)
    return replace(cluster, name=f"{cluster.name}: as if all were {slowest}", groups=groups)
