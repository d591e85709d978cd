"""The device mesh that ops are sharded over: one or two axes of devices of a cluster."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from profiles.errors import InputError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import Device
from simulator.traced.comm_cost import price_collective


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mesh:
    """The first devices of a cluster, with the last axis over neighbors (the order of ranks).

    sizes  of each axis, outermost first
    Raises InputError for a mesh of more devices than the cluster has, or with an axis of one.
    """

    cluster: Cluster
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.sizes) <= 2:
            raise InputError(f"a mesh has one or two axes; got sizes {self.sizes}")
        for name, size in zip(self.names, self.sizes, strict=True):
            if size < 2:
                raise InputError(f"axis {name} of the mesh must have 2 devices or more, has {size}")
        if self.devices > self.cluster.num_devices:
            raise InputError(
                f"a mesh of {' x '.join(map(str, self.sizes))} = {self.devices} devices does not "
                f"fit the cluster {self.cluster.name}, which has {self.cluster.num_devices}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """`tp`, or `dp` and `tp`: only names, as ops may use any axis for any dim."""
        return ("dp", "tp")[-len(self.sizes) :]

    @property
    def devices(self) -> int:
        """Number of devices."""
        return math.prod(self.sizes)

    @property
    def device(self) -> Device:
        """The device type of the first device."""
        return self.cluster.device_at(0)

    def collective_s(self, operation: str, size_bytes: float, axis: int) -> float:
        """Seconds of a collective on one axis, all its groups at the same time.

        size_bytes  the full buffer; for an all-to-all, the buffer of one rank
                    (profiles.hardware.catalogue.link.LinkPoint)
        """
        held = size_bytes / self.sizes[axis] if operation == "all_to_all" else size_bytes
        return _seconds(self, operation, held, axis)


@functools.lru_cache(maxsize=100_000)
def _seconds(mesh: Mesh, operation: str, size_bytes: float, axis: int) -> float:
    stride = math.prod(mesh.sizes[axis + 1 :])
    group = tuple(i * stride for i in range(mesh.sizes[axis]))
    cost = price_collective(operation, size_bytes, group, mesh.cluster, sharing=stride)
    return cost.time_s
