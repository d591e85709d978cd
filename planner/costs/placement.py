"""Groups of pipeline ranks with equal costs: equal devices, and process groups of equal shape."""

from __future__ import annotations

from collections import Counter

from planner.cell import Cell
from profiles.hardware.catalogue.cluster import Cluster

Shape = tuple[tuple[int, ...], ...]


def sides(cell: Cell, rank: int) -> int:
    """Number of cuts at a rank's stages: two each, one at either end of the chain."""
    return 2 * cell.degrees.vpp - (rank == 0) - (rank == cell.degrees.pp - 1)


class Places:
    """The places of a cluster: ranks on equal devices, whose groups are equally placed on the
    levels of interconnect, share a place and their costs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[tuple[int, int, int, int, int], tuple[str, Shape, Shape]] = {}

    def of(self, cell: Cell, rank: int) -> tuple[str, Shape, Shape]:
        """Device name, and the shapes of the rank's tp group and of the groups that shard its
        states, one after the other."""
        degrees = cell.degrees
        key = (degrees.pp, degrees.dp, degrees.dp_replicate, degrees.tp, rank)
        if key not in self._known:
            name = self._cluster.device_at(degrees.rank(pp=rank)).name
            tensor = self.shape(degrees.group("tp", pp=rank))
            replicas, size = degrees.group("dp", pp=rank), degrees.shard_replicas
            groups = (replicas[i : i + size] for i in range(0, degrees.dp, size))
            data = tuple(shape for group in groups for shape in self.shape(group))
            self._known[key] = (name, tensor, data)
        return self._known[key]

    def distinct(self, cell: Cell) -> list[int]:
        """The first rank of each place of a cell."""
        first: dict[tuple[str, Shape, Shape], int] = {}
        for rank in range(cell.degrees.pp):
            first.setdefault(self.of(cell, rank), rank)
        return list(first.values())

    def shape(self, devices: tuple[int, ...]) -> Shape:
        """Members of a group in each domain of each level."""
        return tuple(
            tuple(Counter(index // level.domain_size for index in devices).values())
            for level in self._cluster.levels
        )
