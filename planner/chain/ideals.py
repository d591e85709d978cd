"""Ideals: the sets of blocks that may precede a pipeline cut, and the partition problem over them.

A set of blocks is an ideal of a model's data flow if it contains, with every block, all blocks
whose outputs that block takes. Pipeline stages are differences of nested ideals. A chain of n
blocks has n + 1 ideals, its prefixes; two towers of a and b blocks have about a x b.
Interchangeable blocks (a recommender's embedding tables of one size) keep their traced order:
swapping them gives an equally good plan.

Where there are too many ideals, blocks that are `window` or more apart in the traced order keep
that order: as many ideals as fit, for the widest window that the limit allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from itertools import islice, pairwise
from operator import or_

import numpy as np
import numpy.typing as npt

from profiles.errors import InputError
from profiles.model.graph import ModelGraph

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Index = npt.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)  # no slots: cached properties
class BlockLattice:
    """The ideals of a model's blocks, by size: the empty one first, the full one last.

    precedence  pairs of a block and one that must come later
    members     the blocks of each ideal, as bits
    cuts        [m] whether any tensor crosses the cut behind an ideal; a pipeline needs one
    complete    False if a window left ideals out: then no partition along them is proven best
    """

    num_blocks: int
    precedence: tuple[tuple[int, int], ...]
    members: tuple[int, ...]
    cuts: tuple[bool, ...]
    complete: bool = True

    @property
    def count(self) -> int:
        return len(self.members)

    @property
    def is_chain(self) -> bool:
        """Whether the blocks have only one legal order."""
        return self.count == self.num_blocks + 1

    @cached_property
    def holds(self) -> Bools:
        """[m, n] whether an ideal contains a block."""
        bits = np.asarray([[m >> k & 1 for k in range(self.num_blocks)] for m in self.members])
        return bits.astype(bool)

    @cached_property
    def sizes(self) -> Index:
        """[m] number of blocks of each ideal."""
        return np.asarray(self.holds.sum(axis=1))

    @cached_property
    def pairs(self) -> tuple[Index, Index]:
        """All pairs (smaller, larger) of different ideals of which one contains the other."""
        holds = self.holds.astype(np.int32)
        within = holds @ holds.T == self.sizes[:, None]
        smaller, larger = np.nonzero(within & (self.sizes[:, None] < self.sizes[None, :]))
        return smaller, larger

    @cached_property
    def first_blocks(self) -> Index:
        """[m - 1, m] first block, in traced order, of the difference of two ideals."""
        found = np.zeros((self.count - 1, self.count), dtype=np.intp)
        for block in reversed(range(self.num_blocks)):
            found[self.holds[None, :, block] & ~self.holds[:-1, None, block]] = block
        return found

    def before(self, figures: Floats) -> Floats:
        """[m] sum of `figures` [n] over the blocks of each ideal."""
        if self.is_chain:
            return np.concatenate([[0.0], np.cumsum(figures)])
        return np.asarray(self.holds @ figures)

    def blocks(self, smaller: int, larger: int) -> tuple[int, ...]:
        """The blocks of one ideal that are not in another, in traced order."""
        if self.is_chain:
            return tuple(range(smaller, larger))
        return tuple(np.flatnonzero(self.holds[larger] & ~self.holds[smaller]).tolist())

    def orders(self, limit: int) -> tuple[tuple[int, ...], ...] | None:
        """Every topological order of the blocks, sorted, so that the traced one is first; None if
        there are more than `limit`."""
        import networkx as nx

        graph = nx.DiGraph(self.precedence)
        found = list(islice(nx.all_topological_sorts(graph), limit + 1))
        return None if len(found) > limit else tuple(sorted(map(tuple, found)))


@cache
def prefixes(num_blocks: int) -> BlockLattice:
    """The lattice of a chain of blocks."""
    return BlockLattice(
        num_blocks=num_blocks,
        precedence=tuple(pairwise(range(num_blocks))),
        members=tuple((1 << k) - 1 for k in range(num_blocks + 1)),
        cuts=(False, *[True] * (num_blocks - 1), False),
    )


def lattice_of(graph: ModelGraph, limit: int) -> BlockLattice:
    """The lattice of a graph's blocks, of the widest window if it has more than `limit` ideals."""
    return widest_lattice(len(graph.chain), graph.flows, limit, alike=_alike(graph))


def _alike(graph: ModelGraph) -> list[tuple[int, int]]:
    """Pairs of an interchangeable block and the next one like it: of the same kind, with the same
    inputs, and with outputs of equal size to the same blocks."""
    takes: list[list[int]] = [[] for _ in graph.chain]
    gives: list[list[tuple[tuple[int, ...], float]]] = [[] for _ in graph.chain]
    for index, branch in enumerate(graph.branches):
        gives[branch.producer].append((branch.consumers, branch.spec.memory_bytes))
        for k in branch.consumers:
            takes[k].append(index)
    last: dict[object, int] = {}
    found = []
    # The last block contains the loss; without branches each block's input is the output before it.
    for k, ref in enumerate(graph.chain[:-1] if graph.branches else ()):
        key = (ref.kind, tuple(takes[k]), tuple(sorted(gives[k])))
        if key in last:
            found.append((last[key], k))
        last[key] = k
    return found


def widest_lattice(
    num_blocks: int,
    flows: Sequence[tuple[int, int]],
    limit: int,
    *,
    alike: Sequence[tuple[int, int]] = (),
) -> BlockLattice:
    """The complete lattice if it has at most `limit` ideals, otherwise the one of the widest window
    that does. A window of 1 gives the prefixes of the traced order, regardless of the limit."""
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
    flows: Sequence[tuple[int, int]],
    limit: int,
    *,
    alike: Iterable[tuple[int, int]] = (),
    window: int | None = None,
) -> BlockLattice | None:
    """The lattice of blocks in traced order; None if it has more than `limit` ideals.

    flows   pairs (producer, consumer);  alike  pairs of interchangeable blocks, which keep their
            order
    window  blocks this far apart, or farther, keep the traced order

    The last block, which holds the loss, comes after all others. Raises InputError for a flow
    against the traced order.
    """
    import networkx as nx

    for producer, consumer in flows:
        if not 0 <= producer < consumer < num_blocks:
            raise InputError(f"block {consumer} cannot take a tensor of block {producer}")
    order = [*flows, *alike, *((k, num_blocks - 1) for k in range(num_blocks - 1))]
    if window is not None:
        # Those more than two windows apart follow from these.
        order += [
            (k, later)
            for later in range(window, num_blocks)
            for k in range(max(0, later - 2 * window + 1), later - window + 1)
        ]
    graph = nx.DiGraph()
    graph.add_nodes_from(range(num_blocks))
    graph.add_edges_from(order)
    # The maximal blocks of an ideal are an antichain, and each antichain generates one ideal.
    below = [sum(1 << b for b in {k} | nx.ancestors(graph, k)) for k in range(num_blocks)]
    antichains = list(islice(nx.antichains(graph), limit + 1))
    if len(antichains) > limit:
        return None
    ideals = (reduce(or_, (below[k] for k in maximal), 0) for maximal in antichains)
    members = tuple(sorted(ideals, key=lambda ideal: (ideal.bit_count(), ideal)))
    cuts = tuple(
        any(m >> producer & 1 and not m >> consumer & 1 for producer, consumer in flows)
        for m in members
    )
    return BlockLattice(
        num_blocks=num_blocks,
        precedence=tuple(order),
        members=members,
        cuts=cuts,
        complete=window is None,
    )
