"""The optimization problem of op placements: nodes with strategies, node costs and edge costs.

There are two kinds of nodes: ops, and uses of a tensor. A strategy of the latter is the set of
layouts into which the tensor is converted for its readers in one block, so that a layout needed by
several readers is made and stored once. Repeated blocks share their nodes: each price counts once
per repeat, and tensors passed from a repeat to the next form a cycle. Costs are nanoseconds, usages
bytes.

Memory: weights with their training states; tensors kept for the backward, from the op that makes
them to the backward of the first op that keeps them; other tensors until their last reader. Op i
runs forward at time i and backward at 2 n - 1 - i. Gradients of activations are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from shardwright_placements.op_graph.op_graph import OpGraph
from shardwright_placements.planning.flow import Layout, forward_of
from shardwright_placements.planning.mesh import Mesh
from shardwright_placements.planning.op_seconds import (
    OpPrice,
    local_bytes,
    price_strategy,
    tied_sync_s,
)
from shardwright_placements.planning.resharding import Resharding
from shardwright_placements.planning.strategies import Strategy, strategies_of
from shardwright_placements.planning.uses import MOST_FORMS, Uses, layouts_read, uses_of
from shardwright_placements.strategy_graph.problem import FORBIDDEN, Ints, StrategyGraph

NANOSECOND_S = 1e-9
_Edge = tuple[int, int, Ints]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementProblem:
    """Ops with their strategies and prices, and tensors with their possible layouts."""

    graph: OpGraph
    mesh: Mesh
    micro_batches: int
    strategies: tuple[tuple[Strategy, ...], ...]
    prices: tuple[tuple[OpPrice, ...], ...]
    uses: tuple[Uses, ...]
    resharding: Resharding

    def strategy_graph(self, memory_limit_bytes: float | None = None) -> StrategyGraph:
        """The problem as a graph of nodes: ops first, then uses."""
        graph, last = self.graph, 2 * len(self.graph.ops)
        costs, usages, intervals = [], [], []
        for number, prices in enumerate(self.prices):
            repeats = self._repeats(number)
            costs.append([round(repeats * x.total_s / NANOSECOND_S) for x in prices])
            usages.append([math.ceil(repeats * (x.weight_bytes + x.inner_bytes)) for x in prices])
            weighted = any(x.weight_bytes for x in prices)
            intervals.append((0, last) if weighted else (number, last - number))
        for uses in self.uses:
            costs.append([0] * len(uses.states))
            usages.append([self._held_bytes(uses, state) for state in uses.states])
            intervals.append(self._interval(uses))
        edges = [*self._uses_edges(), *self._tied_edges()]
        return StrategyGraph(
            node_costs=tuple(np.array(x, dtype=np.int64) for x in costs),
            holders=np.arange(len(graph.ops) + len(self.uses)),
            usages=tuple(np.array(x, dtype=np.int64) for x in usages),
            intervals=np.array(intervals, dtype=np.int64).reshape(-1, 2),
            edges=np.array([(u, v) for u, v, _ in edges], dtype=np.int64).reshape(-1, 2),
            edge_costs=tuple(table for _, _, table in edges),
            usage_limit=None if memory_limit_bytes is None else int(memory_limit_bytes),
        )

    def _repeats(self, op: int) -> int:
        return self.graph.blocks[self.graph.ops[op].block].repeats

    def _held_bytes(self, uses: Uses, state: tuple[Layout, ...]) -> int:
        repeats = self.graph.blocks[uses.block].repeats if uses.is_kept else 1
        tensor, forms = self.graph.tensors[uses.tensor], {forward_of(x) for x in state}
        return math.ceil(repeats * sum(local_bytes(tensor, form, self.mesh) for form in forms))

    def _interval(self, uses: Uses) -> tuple[int, int]:
        ops, readers = self.graph.ops, uses.readers
        before = [m for m, _, _ in uses.made if ops[m].block == uses.block and m < min(readers)]
        begin = before[0] if before else min(readers)
        if not uses.is_kept:
            return (begin, max(readers) + 1)
        keepers = [op for op in (*before, *readers) if uses.tensor in ops[op].saved]
        return (begin, 2 * len(ops) - min(keepers))

    def _uses_edges(self) -> Iterator[_Edge]:
        """Edges from makers to a tensor's layouts, and from these to readers."""
        graph = self.graph
        for node, uses in enumerate(self.uses, start=len(graph.ops)):
            tensor = graph.tensors[uses.tensor]
            for maker, output, count in uses.made:
                op = graph.ops[maker]
                keeps = op.block == uses.block and uses.tensor in op.saved
                rows: dict[Layout, list[int]] = {}
                for strategy in self.strategies[maker]:
                    made = strategy.outputs[output]
                    if made not in rows:
                        seconds = [
                            self.resharding.total_seconds(tensor, made, state)
                            for state in uses.states
                        ]
                        rows[made] = [
                            FORBIDDEN
                            if keeps and made not in state
                            else round(count * each / NANOSECOND_S)
                            for each, state in zip(seconds, uses.states, strict=True)
                        ]
                table = [rows[strategy.outputs[output]] for strategy in self.strategies[maker]]
                yield maker, node, np.array(table, dtype=np.int64)
            for reader in uses.readers:
                read = [
                    set(layouts_read(graph, reader, s, uses.tensor))
                    for s in self.strategies[reader]
                ]
                table = [
                    [0 if x <= set(state) else FORBIDDEN for x in read] for state in uses.states
                ]
                yield node, reader, np.array(table, dtype=np.int64)

    def _tied_edges(self) -> Iterator[_Edge]:
        """Edges between ops that read the same weight in the same layout and share one gradient
        sum. The sum is part of the first op's price if the first op's gradient is partial."""
        first: dict[int, int] = {}
        for op, call in enumerate(self.graph.ops):
            for t in dict.fromkeys(call.inputs):
                if not self.graph.tensors[t].parameter:
                    continue
                other = first.setdefault(t, op)
                if other != op:
                    mine, theirs = (
                        [s.inputs[self.graph.ops[x].inputs.index(t)] for s in self.strategies[x]]
                        for x in (op, other)
                    )
                    repeats = self._repeats(other)
                    table = [[self._tie_cost(t, a, b, repeats) for b in mine] for a in theirs]
                    yield other, op, np.array(table, dtype=np.int64)

    def _tie_cost(self, t: int, first: Layout, other: Layout, repeats: int) -> int:
        if forward_of(first) != forward_of(other):
            return FORBIDDEN
        tensor = self.graph.tensors[t]
        tied = tied_sync_s(tensor, (first, other), self.mesh, self.micro_batches)
        return round(repeats * tied / NANOSECOND_S)


def build_problem(
    graph: OpGraph,
    mesh: Mesh,
    *,
    micro_batches: int = 1,
    allowed: Mapping[int, frozenset[str]] | None = None,
) -> PlacementProblem:
    """The problem of all blocks of the graph on the mesh.

    micro_batches  number of micro-batches per sum of weight gradients
    allowed  op number -> labels of strategies to keep (to price a given layout)
    """
    strategies, prices, owned = [], [], set[int]()
    for number, op in enumerate(graph.ops):
        own = strategies_of(op, graph, mesh.sizes)
        if allowed is not None and number in allowed:
            own = tuple(s for s in own if s.label in allowed[number])
        # A weight that several ops read counts for the first of them.
        fresh = {t for t in op.inputs if graph.tensors[t].parameter} - owned
        owned |= fresh
        strategies.append(own)
        prices.append(
            tuple(
                price_strategy(op, graph, s, mesh, micro_batches, owned=frozenset(fresh))
                for s in own
            )
        )
    return PlacementProblem(
        graph=graph,
        mesh=mesh,
        micro_batches=micro_batches,
        strategies=tuple(strategies),
        prices=tuple(prices),
        uses=uses_of(graph, strategies, MOST_FORMS[len(mesh.sizes)]),
        resharding=Resharding(mesh),
    )
