"""Placements of a tensor on the axes of a device mesh, forward, and of its gradient, backward.

Placements are DTensor's (torch.distributed.tensor): `R` replicated, `S(d)` split along dim d, `P`
partial sums. The gradient's placement depends on the use of the tensor: if every rank has the whole
tensor and uses it for its share of the work, each rank has a partial gradient. A `Flow` is the pair
of placements on one axis; a `Layout` has a flow for each axis of the mesh.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwright_placements.sharding_file import split_dim

REPLICATED = "R"
PARTIAL = "P"


def split(dim: int) -> str:
    """The placement that splits `dim`.

    >>> split(1)
    'S(1)'
    """
    return f"S({dim})"


@dataclass(frozen=True, slots=True)
class Flow:
    """A tensor's placement on one axis, and the placement of its gradient.

    R/R    every rank has the whole tensor and does all work on it
    R/P    every rank has the whole tensor and does its share of the work (Megatron-LM's f operator,
           arXiv 1909.08053, section 3)
    P/R    ranks have partial sums (its g operator)
    S/S    ranks have slices
    """

    forward: str
    backward: str

    def __str__(self) -> str:
        return self.forward if self.backward == self.forward else f"{self.forward}/{self.backward}"


WHOLE = Flow(REPLICATED, REPLICATED)
SHARED = Flow(REPLICATED, PARTIAL)
SUMMANDS = Flow(PARTIAL, REPLICATED)

Layout = tuple[Flow, ...]


def sliced(dim: int) -> Flow:
    """The flow of a tensor that is split along `dim`."""
    return Flow(split(dim), split(dim))


def forward_of(layout: Layout) -> tuple[str, ...]:
    """The placements of the tensor, one per axis."""
    return tuple(flow.forward for flow in layout)


def backward_of(layout: Layout) -> tuple[str, ...]:
    """The placements of its gradient, one per axis."""
    return tuple(flow.backward for flow in layout)


def shards(placements: tuple[str, ...], sizes: tuple[int, ...], dim: int | None = None) -> int:
    """Number of slices into which the placements cut a tensor, or one dim of it.

    >>> shards(("S(0)", "S(1)"), (2, 4)), shards(("S(0)", "S(1)"), (2, 4), 1)
    (8, 4)
    """
    count = 1
    for placement, size in zip(placements, sizes, strict=True):
        own = split_dim(placement)
        if own is not None and (dim is None or own == dim):
            count *= size
    return count


def shards_of_others(placements: tuple[str, ...], sizes: tuple[int, ...], axis: int) -> int:
    """Number of slices into which the axes other than `axis` cut a tensor."""
    return shards((*placements[:axis], REPLICATED, *placements[axis + 1 :]), sizes)
