"""Neighboring questions, solved anew: what would fit where nothing does, and what a change brings.

A neighbor changes the axes, the cluster or both, and names the flag that does it. Other clusters to
try have more nodes, or devices with more memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from profiles.errors import ShardwrightError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import Device
from simulator.values.prediction import RankMemory

Question = TypeVar("Question")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Neighbor(Generic[Question]):
    """A change of a question: neighbors of one kind are tried in order until one has an answer.

    change, flag   what the change is called and the flag that makes it
    """

    kind: str
    question: Question
    change: str
    flag: str = ""


def answered(
    neighbors: Iterable[Neighbor[Question]],
    solve: Callable[[Question], Answer | None],
    *,
    most: float = math.inf,
    has_time: Callable[[], bool] = lambda: True,
) -> list[tuple[Neighbor[Question], Answer]]:
    """Of every kind the first neighbor that has an answer, of so many kinds at most."""
    found: dict[str, tuple[Neighbor[Question], Answer]] = {}
    for neighbor in neighbors:
        if len(found) == most or not has_time():
            break
        answer = None if neighbor.kind in found else solve(neighbor.question)
        if answer is not None:
            found[neighbor.kind] = (neighbor, answer)
    return list(found.values())


def fullest_term(memory: RankMemory, running: str = "working memory of one block") -> str:
    """What fills a rank most; `running` is what its working memory is called."""
    terms = {
        "parameters": memory.parameters_bytes,
        "gradients": memory.gradients_bytes,
        "optimizer states": memory.optimizer_bytes,
        "activations": memory.activations_bytes,
        running: memory.transient_bytes,
        "communication buffers": memory.communication_bytes,
    }
    return max(terms, key=lambda term: terms[term])


Rebuild = Callable[[str], Cluster]
"""The cluster of a name such as `8x4xh100-sxm`; raises ShardwrightError where it cannot be."""

_MOST_TIMES = 1024  # devices are doubled at most to so many times what was asked
_NAMED = re.compile(r"^(?:(\d+)x)?(\d+)x([A-Za-z][\w.-]*)$")


@dataclass(frozen=True, slots=True)
class ClusterName:
    """`16x8xh100-sxm`: nodes, devices of each, the device."""

    nodes: int
    per_node: int
    device: str

    def __str__(self) -> str:
        nodes = f"{self.nodes}x" if self.nodes > 1 else ""
        return f"{nodes}{self.per_node}x{self.device}"


def cluster_name(cluster: Cluster) -> ClusterName | None:
    """The cluster's name in parts; None where the name does not say how it is built.

    >>> str(ClusterName(2, 8, "h100-sxm"))
    '2x8xh100-sxm'
    """
    found = _NAMED.match(cluster.name)
    return ClusterName(int(found[1] or 1), int(found[2]), found[3]) if found else None


def grown(cluster: Cluster, times: int, rebuild: Rebuild) -> Cluster:
    """The cluster with so many times the nodes: by its name where the name says how it is built,
    else with its outermost level reaching all of them."""
    name = cluster_name(cluster)
    if name is not None:
        return rebuild(str(replace(name, nodes=name.nodes * times)))
    groups = tuple(replace(group, count=group.count * times) for group in cluster.groups)
    devices = cluster.num_devices * times
    levels = cluster.levels
    if levels:
        outer = replace(levels[-1], domain_size=max(levels[-1].domain_size, devices))
        levels = (*levels[:-1], outer)
    title = f"{cluster.name} with {times} times the nodes"
    return replace(cluster, name=title, groups=groups, levels=levels)


def larger_clusters(cluster: Cluster, rebuild: Rebuild) -> Iterator[Cluster]:
    """Twice, four times, ... the nodes."""
    times = 2
    while times <= _MOST_TIMES:
        try:
            yield grown(cluster, times, rebuild)
        except ShardwrightError:
            return
        times *= 2


def with_device(cluster: Cluster, device: Device, rebuild: Rebuild) -> Cluster:
    """The cluster with all devices replaced: by its name where that says how it is built, else in
    place, with the links as they are.

    Raises ShardwrightError where the named cluster cannot be.
    """
    short = min((device.name, *device.aliases), key=len)
    name = cluster_name(cluster)
    if name is not None:
        return rebuild(str(replace(name, device=short)))
    groups = tuple(replace(group, device=device) for group in cluster.groups)
    return replace(cluster, name=f"{cluster.name} with {short}", groups=groups)


def with_more_memory(
    cluster: Cluster, others: tuple[Device, ...], rebuild: Rebuild
) -> Iterator[tuple[Device, Cluster]]:
    """As many devices of each type that has more memory: same vendor first, least memory first."""
    if not cluster.homogeneous:
        return
    now = cluster.groups[0].device
    larger = [
        device
        for device in others
        if device.usable_bytes > now.usable_bytes and device.type == now.type
    ]
    for device in sorted(larger, key=lambda d: (d.vendor != now.vendor, d.usable_bytes, d.name)):
        try:
            yield device, with_device(cluster, device, rebuild)
        except ShardwrightError:
            continue  # so many of them make no node
