"""Ideals: the sets of blocks that may precede a pipeline cut, and the partition problem over them.

A set of blocks is an ideal of a model's data flow if it contains, with every block, all blocks
whose outputs that block takes. Pipeline stages are differences of nested ideals. A chain of n
blocks has n + 1 ideals, its prefixes; two towers of a and b blocks have about a x b.
Interchangeable blocks (a recommender's embedding tables of one size) keep their traced order:
swapping them gives an equally good plan.

Where there are too many ideals, blocks that are `window` or more apart in the traced order keep
that order: as many ideals as fit, for the widest window that the limit allows.

`IdealProblem` is planner/chain/problem.py with an ideal in place of a position in the chain: arrays
that hold something for blocks [i, j) there hold it here for the blocks of ideal j without those of
ideal i.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import islice
from operator import or_
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from planner.chain.problem import Array, BlockCosts, StageSlot
from profiles.errors import InputError
from profiles.model.graph import ModelGraph

if TYPE_CHECKING:
    import networkx as nx


Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)  # no slots: cached properties
class BlockLattice:
    """The ideals of a model's blocks, by size: the empty one first, the full one last.

    precedence  edges from a block to each block that must come later
    members     the blocks of each ideal, as bits
    cuts        [m] whether any tensor crosses the cut behind an ideal; a pipeline needs one
    complete    False if a window left ideals out: then no partition along them is proven best
    """

    precedence: nx.DiGraph
    members: tuple[int, ...]
    cuts: tuple[bool, ...]
    complete: bool = True

    @property
    def num_blocks(self) -> int:
        return len(self.precedence)

    @property
    def count(self) -> int:
        return len(self.members)

    @property
    def is_chain(self) -> bool:
        """Whether the blocks have only one legal order."""
        return self.count == self.num_blocks + 1

    @cached_property
    def holds(self) -> Bools:
        """[m, n]: whether an ideal contains a block."""
        bits = np.asarray([[m >> k & 1 for k in range(self.num_blocks)] for m in self.members])
        return bits.astype(bool)

    def blocks(self, smaller: int, larger: int) -> tuple[int, ...]:
        """The blocks of one ideal that are not in another, in traced order."""
        bits = self.members[larger] & ~self.members[smaller]
        return tuple(k for k in range(self.num_blocks) if bits >> k & 1)

    def orders(self, limit: int) -> tuple[tuple[int, ...], ...] | None:
        """Every topological order of the blocks, sorted, so that the traced one is first; None if
        there are more than `limit`."""
        import networkx as nx

        found = list(islice(nx.all_topological_sorts(self.precedence), limit + 1))
        return None if len(found) > limit else tuple(sorted(map(tuple, found)))


def lattice_of(graph: ModelGraph, limit: int) -> BlockLattice:
    """The lattice of a graph's blocks, of the widest window if it has more than `limit` ideals."""
    return widest_lattice(len(graph.chain), graph.flows, limit, alike=_alike(graph))


def _alike(graph: ModelGraph) -> list[tuple[int, int]]:
    """Each interchangeable block with the next one like it: of the same kind, with the same inputs,
    and with outputs of equal size to the same blocks."""
    takes: list[list[int]] = [[] for _ in graph.chain]
    gives: list[list[tuple[tuple[int, ...], float]]] = [[] for _ in graph.chain]
    for index, branch in enumerate(graph.branches):
        gives[branch.producer].append((branch.consumers, branch.spec.memory_bytes))
        for k in branch.consumers:
            takes[k].append(index)
    last: dict[object, int] = {}
    found = []
    # The last block holds the loss; without branches each takes what the one before it gives.
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
    flows: Sequence[tuple[int, int]],
    limit: int,
    *,
    alike: Iterable[tuple[int, int]] = (),
    window: int | None = None,
) -> BlockLattice | None:
    """The lattice of blocks in traced order; None if it has more than `limit` ideals.

    flows   pairs (producer, consumer);  alike  pairs of blocks that keep their order, although the
            second takes nothing from the first
    window  blocks that are so many or more apart keep the traced order

    The last block, which holds the loss, comes after all others. Raises InputError for a flow
    against the traced order.
    """
    import networkx as nx

    for producer, consumer in flows:
        if not 0 <= producer < consumer < num_blocks:
            raise InputError(f"block {consumer} cannot take a tensor of block {producer}")
    precedence = nx.DiGraph()
    precedence.add_nodes_from(range(num_blocks))
    precedence.add_edges_from(
        (*flows, *alike, *((k, num_blocks - 1) for k in range(num_blocks - 1)))
    )
    if window is not None:
        # Those more than two windows apart follow from these.
        precedence.add_edges_from(
            (k, later)
            for later in range(window, num_blocks)
            for k in range(max(0, later - 2 * window + 1), later - window + 1)
        )
    # The maximal blocks of an ideal are an antichain, and each antichain generates one ideal.
    below = [sum(1 << b for b in {k} | nx.ancestors(precedence, k)) for k in range(num_blocks)]
    antichains = list(islice(nx.antichains(precedence), limit + 1))
    if len(antichains) > limit:
        return None
    ideals = (reduce(or_, (below[k] for k in maximal), 0) for maximal in antichains)
    members = tuple(sorted(ideals, key=lambda ideal: (ideal.bit_count(), ideal)))
    cuts = tuple(
        any(m >> producer & 1 and not m >> consumer & 1 for producer, consumer in flows)
        for m in members
    )
    return BlockLattice(precedence=precedence, members=members, cuts=cuts, complete=window is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdealProblem:
    """Blocks to cut along nested ideals; m ideals, n blocks in the traced order.

    kinds          [n]; blocks of equal kind have equal costs
    static_bytes, tails_s   [m, m] each
    edge_bytes     [m] kept per micro-batch in flight by a stage that begins at an ideal, beyond
                   saved_bytes
    send_forward_s, send_backward_s   [p, m] over the cut before stage s if it is at that ideal
    """

    lattice: BlockLattice
    kinds: tuple[int, ...]
    schedule: str
    num_microbatches: int
    costs: tuple[BlockCosts, ...]
    slots: tuple[StageSlot, ...]
    static_bytes: tuple[Array, ...]
    tails_s: tuple[Array, ...]
    edge_bytes: Array
    send_forward_s: Array
    send_backward_s: Array

    def __post_init__(self) -> None:
        m, p = self.lattice.count, len(self.slots)
        for name, shape in (
            ("edge_bytes", (m,)),
            ("send_forward_s", (p, m)),
            ("send_backward_s", (p, m)),
        ):
            if getattr(self, name).shape != shape:
                raise InputError(f"{name} must have shape {shape}, has {getattr(self, name).shape}")
        if any(array.shape != (m, m) for array in (*self.static_bytes, *self.tails_s)):
            raise InputError(f"static_bytes and tails_s must have shape {(m, m)} each")
        if len(self.kinds) != self.lattice.num_blocks:
            raise InputError(
                f"{len(self.kinds)} kinds for {self.lattice.num_blocks} blocks of the lattice"
            )

    def tail_of(self, stage: int) -> Array:
        """[m, m] seconds after the last backward of a stage."""
        return self.tails_s[self.slots[stage].tail]

    @property
    def num_blocks(self) -> int:
        return self.lattice.num_blocks

    @property
    def num_stages(self) -> int:
        return len(self.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdealPartition:
    """A way to fill the stages: the blocks of each in the traced order, and their strategies."""

    stages: tuple[tuple[int, ...], ...]
    strategies: tuple[tuple[int, ...], ...]
    step_time_s: float

    @property
    def order(self) -> tuple[int, ...]:
        """The blocks, stage by stage."""
        return tuple(block for stage in self.stages for block in stage)

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each stage begins in that order."""
        sizes = [len(stage) for stage in self.stages]
        return tuple(sum(sizes[:s]) for s in range(len(sizes)))
