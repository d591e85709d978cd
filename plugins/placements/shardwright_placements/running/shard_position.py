"""A rank's position on a device mesh, and its part of a tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from shardwright_placements.sharding_file import Placements, split_dim

REPLICATED, PARTIAL = "R", "P"


def dtensor_placements(placements: Placements) -> list[Placement]:
    """The placements as values of torch.distributed.tensor."""
    found: list[Placement] = []
    for text in placements:
        dim = split_dim(text)
        if dim is not None:
            found.append(Shard(dim))
        else:
            found.append(Partial() if text == PARTIAL else Replicate())
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A rank's coordinates on the mesh."""

    mesh: DeviceMesh
    sizes: tuple[int, ...]
    coordinates: tuple[int, ...]

    def span(self, placements: Placements, dim: int, length: int) -> tuple[int, int]:
        """(first, count) of the rank's indices along a dim; inner axes cut outer axes' slices."""
        first, count = 0, length
        for placement, size, at in zip(placements, self.sizes, self.coordinates, strict=True):
            if split_dim(placement) == dim:
                count //= size
                first += at * count
        return first, count

    def local_shape(self, placements: Placements, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the rank's part."""
        return tuple(self.span(placements, dim, n)[1] for dim, n in enumerate(shape))

    def part(self, x: Tensor, placements: Placements) -> Tensor:
        """The rank's part of a tensor; of partial sums, the first rank has all, the others
        zeros."""
        for dim, length in enumerate(x.shape):
            first, count = self.span(placements, dim, length)
            if count != length:
                x = x.narrow(dim, first, count)
        return x if self.is_first(placements) else torch.zeros_like(x)

    def is_first(self, placements: Placements) -> bool:
        """Whether the rank is the first on every axis with partial sums."""
        return all(
            at == 0 for p, at in zip(placements, self.coordinates, strict=True) if p == PARTIAL
        )

    def axes(self, placements: Placements, wanted: str) -> tuple[int, ...]:
        """The axes with this placement."""
        return tuple(axis for axis, p in enumerate(placements) if p == wanted)

    def ranks(self, axes: tuple[int, ...]) -> int:
        """Product of the sizes of the axes."""
        count = 1
        for axis in axes:
            count *= self.sizes[axis]
        return count


def make_position(mesh: DeviceMesh) -> Position:
    """The position of this process."""
    coordinates = mesh.get_coordinate()
    assert coordinates is not None  # every process that we start is part of the mesh
    return Position(mesh=mesh, sizes=tuple(mesh.shape), coordinates=tuple(coordinates))
