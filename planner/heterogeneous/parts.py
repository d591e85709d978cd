"""Parts and views of a cluster of several device types, for searches with equal replicas.

The search prices a pipeline rank by the first of its devices, so it runs only where all devices of
a rank are of one type: on the devices of one type, or on all of them with stages that keep to one
type. For equal shares over unlike devices there is a third view: all devices as slow, and with as
little memory, as the least of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.axes import Axes
from planner.blocks.block_search import one_type_stages
from profiles.hardware.catalogue.cluster import Cluster, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A cluster and a space for a search.

    title    for people;  devices  type of each of its devices
    exact    whether the search prices its plans as they are; else its times are upper bounds
    """

    title: str
    cluster: Cluster
    space: Axes
    devices: tuple[str, ...]
    exact: bool = True


def parts_of(cluster: Cluster, space: Axes, slowest: str) -> tuple[Part, ...]:
    """Every part: each type alone, all with stages of one type, all as slow as the slowest."""
    every = tuple(
        group.device.name
        for group in cluster.groups
        for _ in range(group.count * group.devices_per_node)
    )
    found = [
        Part(
            title=f"{name} alone",
            cluster=only(cluster, name),
            space=space,
            devices=(name,) * every.count(name),
        )
        for name in dict.fromkeys(every)
    ]
    whole = one_type_stages(cluster, space)
    if whole is not None:
        title = "all, each stage of one type"
        found.append(Part(title=title, cluster=cluster, space=whole, devices=every))
    level = levelled(cluster, slowest)
    title = "all with equal shares"
    return (*found, Part(title=title, cluster=level, space=space, devices=every, exact=False))


def only(cluster: Cluster, name: str) -> Cluster:
    """The nodes of one type, on the levels that they span."""
    groups = tuple(group for group in cluster.groups if group.device.name == name)
    count = sum(group.count * group.devices_per_node for group in groups)
    levels: list[Level] = []
    for level in cluster.levels:
        if levels and levels[-1].domain_size >= count:
            break
        levels.append(level)
    return replace(
        cluster, name=f"{cluster.name}: {name} only", groups=groups, levels=tuple(levels)
    )


def levelled(cluster: Cluster, slowest: str) -> Cluster:
    """Every device as slow as the type `slowest`, with the least memory of any."""
    least = min((group.device for group in cluster.groups), key=lambda device: device.usable_bytes)
    slow = next(group.device for group in cluster.groups if group.device.name == slowest)
    device = replace(slow, memory_bytes=least.memory_bytes, reserved_bytes=least.reserved_bytes)
    groups = tuple(replace(group, device=device) for group in cluster.groups)
    return replace(cluster, name=f"{cluster.name}: as if all were {slowest}", groups=groups)
