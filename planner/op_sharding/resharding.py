"""What it costs to change a tensor's placements, forward and backward.

On one axis: S to R is an all-gather, P to R an all-reduce, P to S a reduce-scatter, S to another S
an all-to-all; R to S is a slice and anything to P a padding with zeros, both free of communication
(DTensor's redistribute, torch.distributed.tensor documentation). Prices are the simulator's
(simulator/comm_cost.py). On several axes one axis changes at a time, on the slices that the others
leave, in the order that costs least; so too on one axis where a way round costs less.

A tensor that is used in several forms is converted into each from the cheapest that is there
already; gradients that arrive in several forms are summed form by form on the way back. Both are
the least arborescence over the forms, found by trying orders. Copies on the device are not counted.
"""

from __future__ import annotations

import itertools
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.op_sharding.flow import PARTIAL, REPLICATED, Layout, shards, split, split_dim
from planner.op_sharding.mesh import Mesh
from profiles.model.op_graph import GraphTensor

Placements = tuple[str, ...]


def operation_between(before: str, after: str) -> str | None:
    """The collective that changes one axis, None where nothing is sent.

    >>> operation_between("P", "S(0)"), operation_between("R", "S(0)")
    ('reduce_scatter', None)
    """
    if before in (after, REPLICATED) or after == PARTIAL:
        return None
    if before == PARTIAL:
        return "all_reduce" if after == REPLICATED else "reduce_scatter"
    return "all_gather" if after == REPLICATED else "all_to_all"


def forms_of(tensor: GraphTensor, sizes: tuple[int, ...]) -> tuple[Placements, ...]:
    """Every placement of a tensor whose dims are cut evenly."""
    dims = [split(d) for d in range(len(tensor.shape))]
    one = (REPLICATED, PARTIAL, *dims)
    return tuple(
        form
        for form in itertools.product(one, repeat=len(sizes))
        if all(n % shards(form, sizes, d) == 0 for d, n in enumerate(tensor.shape))
    )


class Resharding:
    """Prices on one mesh, remembered."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._tables: dict[tuple[object, ...], tuple[dict[Placements, int], NDArray[np.float64]]]
        self._tables = {}
        self._fans: dict[tuple[object, ...], float] = {}

    def seconds(self, tensor: GraphTensor, before: Placements, after: Placements) -> float:
        """Seconds to bring the tensor from one placement to another."""
        index, table = self._table(tensor)
        return float(table[index[before], index[after]])

    def forward_seconds(self, tensor: GraphTensor, made: Layout, used: tuple[Layout, ...]) -> float:
        """Seconds to bring a tensor that is made in one layout into all that it is used in."""
        return self._fan(
            tensor,
            tuple(flow.forward for flow in made),
            tuple(sorted({tuple(flow.forward for flow in layout) for layout in used})),
            False,
        )

    def backward_seconds(
        self, tensor: GraphTensor, made: Layout, used: tuple[Layout, ...]
    ) -> float:
        """Seconds to sum the gradients of all uses in the layout that the maker needs."""
        if not tensor.needs_gradient:
            return 0.0
        return self._fan(
            tensor,
            tuple(flow.backward for flow in made),
            tuple(sorted({tuple(flow.backward for flow in layout) for layout in used})),
            True,
        )

    def total_seconds(self, tensor: GraphTensor, made: Layout, used: tuple[Layout, ...]) -> float:
        """Both passes."""
        return self.forward_seconds(tensor, made, used) + self.backward_seconds(tensor, made, used)

    def _fan(
        self, tensor: GraphTensor, root: Placements, forms: tuple[Placements, ...], back: bool
    ) -> float:
        key = (tensor.shape, tensor.dtype, root, forms, back)
        found = self._fans.get(key)
        if found is None:
            index, table = self._table(tensor)
            numbers = [index[form] for form in forms if form != root]
            found = _arborescence(table.T if back else table, index[root], numbers)
            self._fans[key] = found
        return found

    def _table(self, tensor: GraphTensor) -> tuple[dict[Placements, int], NDArray[np.float64]]:
        """Least seconds between every two forms (Floyd and Warshall over single changes)."""
        key = (tensor.shape, tensor.dtype)
        if key not in self._tables:
            forms = forms_of(tensor, self.mesh.sizes)
            index = {form: i for i, form in enumerate(forms)}
            table = np.full((len(forms), len(forms)), np.inf)
            for a, before in enumerate(forms):
                for b, after in enumerate(forms):
                    table[a, b] = self._change(tensor.memory_bytes, before, after)
            for middle in range(len(forms)):
                table = np.minimum(table, table[:, middle, None] + table[None, middle, :])
            self._tables[key] = (index, table)
        return self._tables[key]

    def _change(self, full_bytes: float, before: Placements, after: Placements) -> float:
        """A change of one axis, infinite where more than one differs."""
        differing = [axis for axis, (x, y) in enumerate(zip(before, after, strict=True)) if x != y]
        if not differing:
            return 0.0
        if len(differing) > 1:
            return float("inf")
        axis = differing[0]
        operation = operation_between(before[axis], after[axis])
        if operation is None:
            return 0.0
        size = full_bytes
        for other, placement in enumerate(before):
            if other != axis and split_dim(placement) is not None:
                size /= self.mesh.sizes[other]
        if operation == "all_to_all":
            size /= self.mesh.sizes[axis]  # what one rank holds (profiles/hardware/link.py)
        return self.mesh.collective_s(operation, size, axis)


@lru_cache(maxsize=16)
def _orders(count: int) -> tuple[tuple[int, ...], ...]:
    return tuple(itertools.permutations(range(count)))


def _arborescence(table: NDArray[np.float64], root: int, targets: list[int]) -> float:
    """The least cost of reaching all targets from the root, each from one that is there."""
    best = float("inf")
    for order in _orders(len(targets)):
        there, cost = [root], 0.0
        for position in order:
            target = targets[position]
            cost += float(min(table[x, target] for x in there))
            there.append(target)
        best = min(best, cost)
    return best
