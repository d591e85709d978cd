"""Neighbors of a request: changes that make a plan fit, and the effect of a change.

A neighbor changes the axes, the cluster or both, and names the flag for it. Other clusters have
more nodes, or devices with more memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from profiles.errors import ShardwrightError
from profiles.hardware.catalogue.catalog import NAME_START, get_cluster
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import Device
from simulator.values.prediction import RankMemory

Question = TypeVar("Question")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Neighbor(Generic[Question]):
    """A changed request. Neighbors of one kind are tried in order until one has an answer.

    change, flag  name of the change, and the flag for it
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
    """The first neighbor of each kind that has an answer, for at most `most` kinds."""
    found: dict[str, tuple[Neighbor[Question], Answer]] = {}
    for neighbor in neighbors:
        if len(found) == most or not has_time():
            break
        answer = None if neighbor.kind in found else solve(neighbor.question)
        if answer is not None:
            found[neighbor.kind] = (neighbor, answer)
    return list(found.values())


def fullest_term(memory: RankMemory, running: str = "working memory of one block") -> str:
    """The name of the largest part of a rank's memory; `running` names the working memory."""
    terms = {
        "parameters": memory.parameters_bytes,
        "gradients": memory.gradients_bytes,
        "optimizer states": memory.optimizer_bytes,
        "activations": memory.activations_bytes,
        running: memory.transient_bytes,
        "communication buffers": memory.communication_bytes,
    }
    return max(terms, key=lambda term: terms[term])


_MOST_TIMES = 1024  # the number of devices is at most this multiple of the request
_NAMED = re.compile(rf"^(?:(\d+)x)?(\d+)x({NAME_START}[\w.-]*)$")


@dataclass(frozen=True, slots=True)
class ClusterName:
    """The parts of `16x8xh100-sxm`: nodes, devices per node, device."""

    nodes: int
    per_node: int
    device: str

    def __str__(self) -> str:
        nodes = f"{self.nodes}x" if self.nodes > 1 else ""
        return f"{nodes}{self.per_node}x{self.device}"


def cluster_name(cluster: Cluster) -> ClusterName | None:
    """The cluster's name in parts; None if the name does not describe the cluster.

    >>> str(ClusterName(2, 8, "h100-sxm"))
    '2x8xh100-sxm'
    """
    found = _NAMED.match(cluster.name)
    return ClusterName(int(found[1] or 1), int(found[2]), found[3]) if found else None


def grown(cluster: Cluster, times: int) -> Cluster:
    """The cluster with `times` as many nodes: by its name if that describes it, otherwise with an
    outermost level that connects all nodes."""
    name = cluster_name(cluster)
    if name is not None:
        return get_cluster(str(replace(name, nodes=name.nodes * times)))
    groups = tuple(replace(group, count=group.count * times) for group in cluster.groups)
    devices = cluster.num_devices * times
    levels = cluster.levels
    if levels:
        outer = replace(levels[-1], domain_size=max(levels[-1].domain_size, devices))
        levels = (*levels[:-1], outer)
    title = f"{cluster.name} with {times} times the nodes"
    return replace(cluster, name=title, groups=groups, levels=levels)


def larger_clusters(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with twice, four times, ... the nodes."""
    times = 2
    while times <= _MOST_TIMES:
        try:
            yield grown(cluster, times)
        except ShardwrightError:
            return
        times *= 2


def with_device(cluster: Cluster, device: Device) -> Cluster:
    """The cluster with all devices replaced: by its name if that describes it, otherwise with the
    same links.

    Raises ShardwrightError if the named cluster is impossible.
    """
    short = min((device.name, *device.aliases), key=len)
    name = cluster_name(cluster)
    if name is not None:
        return get_cluster(str(replace(name, device=short)))
    groups = tuple(replace(group, device=device) for group in cluster.groups)
    return replace(cluster, name=f"{cluster.name} with {short}", groups=groups)


def with_more_memory(
    cluster: Cluster, others: tuple[Device, ...]
) -> Iterator[tuple[Device, Cluster]]:
    """The cluster with devices of more memory, per type; first the same vendor, then the smallest
    memory."""
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
            yield device, with_device(cluster, device)
        except ShardwrightError:
            continue  # they do not divide a node
