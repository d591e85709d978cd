"""The sets of blocks that a cut may separate from the rest: the ideals of a model's data flow.

A set of blocks is an ideal if it contains, with each block, every block whose tensors that one
takes. The stages of a pipeline are the differences of nested ideals. A chain of n blocks has n + 1
ideals, its prefixes; two towers of a and b blocks have some a x b. Interchangeable blocks (a
recommender's tables of one size) keep the traced order: any plan is as good as the one with the
earlier of them first.

Where there are too many ideals, blocks that are `window` or more apart in the traced order keep
that order: as many ideals as fit, for the widest window that the limit allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from profiles.errors import InputError
from profiles.model.graph import ModelGraph

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)  # no slots: cached properties
class BlockLattice:
    """The ideals of `num_blocks` blocks, the empty one first and the full one last, by size.

    before    per block the set (bits) of blocks that come before it: those whose tensors it takes,
              and the previously traced one of its interchangeable blocks
    members   per ideal its blocks (bits)
    cuts      [m] whether anything crosses there: a pipeline cannot be cut where nothing does
    complete  False if a window left ideals out: then no partition along them is proven best
    """

    num_blocks: int
    before: tuple[int, ...]
    members: tuple[int, ...]
    cuts: tuple[bool, ...]
    complete: bool = True

    @property
    def count(self) -> int:
        return len(self.members)

    @property
    def is_chain(self) -> bool:
        """Whether the blocks have one order only."""
        return self.count == self.num_blocks + 1

    @cached_property
    def holds(self) -> Bools:
        """[m, n]: whether an ideal holds a block."""
        bits = np.asarray([[m >> k & 1 for k in range(self.num_blocks)] for m in self.members])
        return bits.astype(bool)

    def blocks(self, smaller: int, larger: int) -> tuple[int, ...]:
        """The blocks of one ideal without those of another, in the traced order."""
        bits = self.members[larger] & ~self.members[smaller]
        return tuple(k for k in range(self.num_blocks) if bits >> k & 1)

    def orders(self, limit: int) -> tuple[tuple[int, ...], ...] | None:
        """Every order of the blocks in which each stands behind those that it takes from, the
        traced one first; None where there are more than `limit`."""
        found: list[tuple[int, ...]] = []
        for order in self._orders(0, ()):
            if len(found) == limit:
                return None
            found.append(order)
        return tuple(found)

    def _orders(self, done: int, order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(order) == self.num_blocks:
            yield order
        for k in range(self.num_blocks):
            if not done >> k & 1 and not self.before[k] & ~done:
                yield from self._orders(done | 1 << k, (*order, k))


def lattice_of(graph: ModelGraph, limit: int) -> BlockLattice:
    """The lattice of a graph's blocks, of the widest window if there are more than `limit` ideals.

    The last block computes the loss and comes after all others.
    """
    n = len(graph.chain)
    flows = [(b.producer, k) for b in graph.branches for k in b.consumers]
    if not graph.branches:
        flows = [(k, k + 1) for k in range(n - 1)]
    return widest_lattice(n, flows, limit, alike=_alike(graph))


def _alike(graph: ModelGraph) -> list[tuple[int, int]]:
    """Blocks that could change places, each with the next such one: of one kind, taking the same
    tensors, and giving as large ones to the same blocks."""
    takes: list[list[int]] = [[] for _ in graph.chain]
    gives: list[list[tuple[tuple[int, ...], float]]] = [[] for _ in graph.chain]
    for index, branch in enumerate(graph.branches):
        gives[branch.producer].append((branch.consumers, branch.spec.memory_bytes))
        for k in branch.consumers:
            takes[k].append(index)
    seen: dict[object, int] = {}
    found = []
    # The last block holds the loss; without branches each takes what the one before it gives.
    for k, ref in enumerate(graph.chain[:-1] if graph.branches else ()):
        key = (ref.kind, tuple(takes[k]), tuple(sorted(gives[k])))
        if key in seen:
            found.append((seen[key], k))
        seen[key] = k
    return found


def widest_lattice(
    num_blocks: int,
    flows: list[tuple[int, int]],
    limit: int,
    *,
    alike: Sequence[tuple[int, int]] = (),
) -> BlockLattice:
    """The complete lattice if it has at most `limit` ideals, else that of the widest window that
    has; with a window of 1, the prefixes of the traced order, whatever the limit."""
    complete = lattice_of_flows(num_blocks, flows, limit, alike=alike)
    if complete is not None:
        return complete
    widest = lattice_of_flows(num_blocks, flows, num_blocks + 1, alike=alike, window=1)
    assert widest is not None  # a chain of n blocks has n + 1 ideals
    for window in range(2, num_blocks):
        wider = lattice_of_flows(num_blocks, flows, limit, alike=alike, window=window)
        if wider is None:
            break
        widest = wider
    return widest


def lattice_of_flows(
    num_blocks: int,
    flows: list[tuple[int, int]],
    limit: int,
    *,
    alike: Sequence[tuple[int, int]] = (),
    window: int | None = None,
) -> BlockLattice | None:
    """The lattice of blocks in a traced order, given pairs (block, one that takes its tensors);
    None if it has more than `limit` ideals.

    alike   pairs of blocks of which the second comes after the first, though it takes nothing
            from it
    window  blocks that are so many or more apart keep the traced order
    """
    before = [0] * num_blocks
    for producer, consumer in flows:
        if not 0 <= producer < consumer < num_blocks:
            raise InputError(f"block {consumer} cannot take a tensor of block {producer}")
        before[consumer] |= 1 << producer
    for earlier, later in alike:
        before[later] |= 1 << earlier
    if window is not None:
        for later in range(window, num_blocks):
            before[later] |= (1 << (later - window + 1)) - 1
    before[-1] = (1 << (num_blocks - 1)) - 1
    layer, members = {0}, [0]
    while layer:
        larger: set[int] = set()
        for ideal in layer:
            for k in range(num_blocks):
                if not ideal >> k & 1 and not before[k] & ~ideal:
                    larger.add(ideal | 1 << k)
            if len(larger) + len(members) > limit:
                return None
        members.extend(sorted(larger))
        layer = larger
    cuts = tuple(
        any(m >> producer & 1 and not m >> consumer & 1 for producer, consumer in flows)
        for m in members
    )
    return BlockLattice(
        num_blocks=num_blocks,
        before=tuple(before),
        members=tuple(members),
        cuts=cuts,
        complete=window is None,
    )
