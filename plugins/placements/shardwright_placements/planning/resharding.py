"""The cost of changing a tensor's placements, forward and backward.

On one axis: S to R is an all-gather, P to R an all-reduce, P to S a reduce-scatter, S to another S
an all-to-all. R to S is a slice and anything to P a padding with zeros, both without communication
(DTensor's redistribute, torch.distributed.tensor documentation). Prices are the simulator's
(traced/comm_cost.py). On several axes, one axis changes at a time, on the slices left by the
others, in the cheapest order; a change on one axis may take a cheaper detour. If several axes split
the same dim, the inner ones cut the slices of the outer ones (DTensor's order of shards), so only
the innermost can change by itself.

A tensor used in several layouts is converted into each from the cheapest existing layout. In the
backward, gradients in several layouts are summed one by one along the same paths. Both are a
minimum arborescence over the layouts, found by trying orders. Copies on the device are not counted.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright_placements.op_graph.op_graph import GraphTensor
from shardwright_placements.planning.flow import (
    PARTIAL,
    REPLICATED,
    Layout,
    backward_of,
    forward_of,
    shards,
    shards_of_others,
    split,
)
from shardwright_placements.planning.mesh import Mesh
from shardwright_placements.sharding_file import Change, Placements, split_dim


@dataclass(frozen=True, slots=True)
class _Table:
    """Minimum seconds between every two layouts, and the first layout on the way, by index."""

    forms: tuple[Placements, ...]
    index: dict[Placements, int]
    seconds: NDArray[np.float64]
    next_form: NDArray[np.intp]

    def way(self, before: int, after: int) -> tuple[Placements, ...]:
        """The layouts after each single change on the way from one layout to another."""
        steps = []
        while before != after:
            before = int(self.next_form[before, after])
            steps.append(self.forms[before])
        return tuple(steps)


def operation_between(before: str, after: str) -> str | None:
    """The collective that changes one axis, None if nothing is sent.

    >>> operation_between("P", "S(0)"), operation_between("R", "S(0)")
    ('reduce_scatter', None)
    """
    if before in (after, REPLICATED) or after == PARTIAL:
        return None
    if before == PARTIAL:
        return "all_reduce" if after == REPLICATED else "reduce_scatter"
    return "all_gather" if after == REPLICATED else "all_to_all"


def is_innermost(before: Placements, after: Placements, axis: int) -> bool:
    """Whether no inner axis splits a dim that this axis splits before or after the change.

    >>> is_innermost(("S(0)", "S(0)"), ("R", "S(0)"), 0)
    False
    """
    dims = {split_dim(before[axis]), split_dim(after[axis])} - {None}
    return not any(split_dim(placement) in dims for placement in before[axis + 1 :])


def forms_of(tensor: GraphTensor, sizes: tuple[int, ...]) -> tuple[Placements, ...]:
    """All placements of a tensor with evenly cut dims."""
    dims = [split(d) for d in range(len(tensor.shape))]
    one = (REPLICATED, PARTIAL, *dims)
    return tuple(
        form
        for form in itertools.product(one, repeat=len(sizes))
        if all(n % shards(form, sizes, d) == 0 for d, n in enumerate(tensor.shape))
    )


class Resharding:
    """Prices of layout changes on one mesh, cached."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._tables: dict[tuple[object, ...], _Table] = {}
        self._fans: dict[tuple[object, ...], _Fan] = {}

    def one_way_seconds(
        self, tensor: GraphTensor, made: Layout, used: tuple[Layout, ...], *, back: bool
    ) -> float:
        """Seconds to convert a tensor from the layout `made` to all layouts `used`; with `back`, to
        sum the gradients of all uses in the maker's layout."""
        if back and not tensor.needs_gradient:
            return 0.0
        return self._fan(tensor, made, used, back).seconds

    def total_seconds(self, tensor: GraphTensor, made: Layout, used: tuple[Layout, ...]) -> float:
        """Seconds forward and backward."""
        return sum(self.one_way_seconds(tensor, made, used, back=back) for back in (False, True))

    def changes(
        self, tensor: GraphTensor, made: Layout, used: tuple[Layout, ...], *, back: bool
    ) -> tuple[Change, ...]:
        """The changes priced by `one_way_seconds`, in order; with `back`, each gradient into the
        layout in which it is summed."""
        if back and not tensor.needs_gradient:
            return ()
        table, fan = self._table(tensor), self._fan(tensor, made, used, back)
        if not back:
            pairs = fan.branches
        else:
            pairs = tuple((after, before) for before, after in reversed(fan.branches))
        return tuple(
            Change(source=table.forms[before], steps=table.way(before, after))
            for before, after in pairs
        )

    def _fan(self, tensor: GraphTensor, made: Layout, used: tuple[Layout, ...], back: bool) -> _Fan:
        side = backward_of if back else forward_of
        root, forms = side(made), tuple(sorted({side(layout) for layout in used}))
        key = (tensor.shape, tensor.dtype, root, forms, back)
        found = self._fans.get(key)
        if found is None:
            table = self._table(tensor)
            numbers = [table.index[form] for form in forms if form != root]
            seconds = table.seconds.T if back else table.seconds
            found = _arborescence(seconds, table.index[root], numbers)
            self._fans[key] = found
        return found

    def _table(self, tensor: GraphTensor) -> _Table:
        """The table of a tensor, by Floyd-Warshall over single changes."""
        key = (tensor.shape, tensor.dtype)
        if key not in self._tables:
            forms = forms_of(tensor, self.mesh.sizes)
            count = len(forms)
            seconds = np.full((count, count), np.inf)
            for a, before in enumerate(forms):
                for b, after in enumerate(forms):
                    seconds[a, b] = self._change(tensor.memory_bytes, before, after)
            next_form = np.tile(np.arange(count), (count, 1))
            for middle in range(count):
                around = seconds[:, middle, None] + seconds[None, middle, :]
                better = around < seconds
                seconds = np.where(better, around, seconds)
                next_form = np.where(better, next_form[:, middle, None], next_form)
            self._tables[key] = _Table(
                forms=forms,
                index={form: i for i, form in enumerate(forms)},
                seconds=seconds,
                next_form=next_form,
            )
        return self._tables[key]

    def _change(self, full_bytes: float, before: Placements, after: Placements) -> float:
        """Seconds to change one axis; infinite if more than one differs."""
        differing = [axis for axis, (x, y) in enumerate(zip(before, after, strict=True)) if x != y]
        if not differing:
            return 0.0
        if len(differing) > 1 or not is_innermost(before, after, differing[0]):
            return float("inf")
        axis = differing[0]
        operation = operation_between(before[axis], after[axis])
        if operation is None:
            return 0.0
        size = full_bytes / shards_of_others(before, self.mesh.sizes, axis)
        return self.mesh.collective_s(operation, size, axis)


@dataclass(frozen=True, slots=True)
class _Fan:
    """Seconds, and pairs (existing layout, layout made from it) in order."""

    seconds: float
    branches: tuple[tuple[int, int], ...]


def _arborescence(table: NDArray[np.float64], root: int, targets: list[int]) -> _Fan:
    """The minimum cost of reaching all targets from the root, each from an existing layout."""
    best = _Fan(float("inf"), ())
    for order in itertools.permutations(targets):
        there, cost, branches = [root], 0.0, []
        for target in order:
            source = min(there, key=lambda x: table[x, target])
            cost += float(table[source, target])
            branches.append((source, target))
            there.append(target)
        if cost < best.seconds:
            best = _Fan(cost, tuple(branches))
    return best
