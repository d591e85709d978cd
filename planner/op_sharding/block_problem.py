"""The abstract problem of an op graph: nodes with strategies, priced singly and in pairs.

A node is an op, or the uses of a tensor: the set of layouts into which the tensor is brought for
its readers in one block, so that a form that several readers need is made, and held, once. Repeated
blocks share their nodes: each price counts as often as the block repeats, and what flows from a
repeat to the next closes a loop. Costs are nanoseconds, usages bytes.

Memory: weights with their training states, and what ops keep for the backward, from the op that
makes it to the backward of the first op that keeps it; what is not kept lives to its last reader.
Time is op i forward at i and backward at 2 n - 1 - i. Gradients of activations are not counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.op_sharding.flow import Layout, forward_of
from planner.op_sharding.mesh import Mesh
from planner.op_sharding.op_seconds import (
    OpPrice,
    Training,
    local_bytes,
    price_strategy,
    weight_sync_s,
)
from planner.op_sharding.resharding import Resharding
from planner.op_sharding.strategies import Strategy, strategies_of
from planner.op_sharding.uses import MOST_FORMS, Uses, layouts_read, uses_of
from planner.strategy_graph.problem import FORBIDDEN, StrategyGraph
from profiles.model.op_graphs.op_graph import OpGraph

NANOSECOND_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockProblem:
    """The problem with what its nodes mean: ops first, then uses."""

    graph: OpGraph
    mesh: Mesh
    training: Training
    strategies: tuple[tuple[Strategy, ...], ...]
    prices: tuple[tuple[OpPrice, ...], ...]
    uses: tuple[Uses, ...]
    resharding: Resharding
    abstract: StrategyGraph


def build_problem(
    graph: OpGraph,
    mesh: Mesh,
    *,
    training: Training,
    memory_limit_bytes: float | None = None,
    allowed: dict[int, frozenset[str]] | None = None,
) -> BlockProblem:
    """The problem of all blocks of the graph on the mesh.

    allowed  for ops by number, the labels of strategies to keep (to price a given layout)
    """
    strategies = []
    for number, op in enumerate(graph.ops):
        own = strategies_of(op, graph, mesh.sizes)
        if allowed is not None and number in allowed:
            own = tuple(s for s in own if s.label in allowed[number])
        strategies.append(own)
    owner: dict[int, int] = {}
    for number, op in enumerate(graph.ops):
        for t in op.inputs:
            if graph.tensors[t].parameter:
                owner.setdefault(t, number)
    prices = []
    for number, (op, choices) in enumerate(zip(graph.ops, strategies, strict=True)):
        owned = frozenset(t for t in op.inputs if owner.get(t) == number)
        prices.append(
            tuple(price_strategy(op, graph, s, mesh, training, owned=owned) for s in choices)
        )
    uses = uses_of(graph, strategies, MOST_FORMS[len(mesh.sizes)])
    resharding = Resharding(mesh)
    builder = _Builder(graph, mesh, training, tuple(strategies), tuple(prices), uses, resharding)
    return BlockProblem(
        graph=graph,
        mesh=mesh,
        training=training,
        strategies=tuple(strategies),
        prices=tuple(prices),
        uses=uses,
        resharding=resharding,
        abstract=builder.build(memory_limit_bytes),
    )


class _Builder:
    """Puts nodes, tables, usages and intervals together."""

    def __init__(
        self,
        graph: OpGraph,
        mesh: Mesh,
        training: Training,
        strategies: tuple[tuple[Strategy, ...], ...],
        prices: tuple[tuple[OpPrice, ...], ...],
        uses: tuple[Uses, ...],
        resharding: Resharding,
    ) -> None:
        self.graph, self.mesh, self.training = graph, mesh, training
        self.strategies, self.prices, self.uses, self.resharding = (
            strategies,
            prices,
            uses,
            resharding,
        )
        self.edges: list[tuple[int, int]] = []
        self.tables: list[NDArray[np.int64]] = []

    def build(self, memory_limit_bytes: float | None) -> StrategyGraph:
        costs = [self._op_costs(op) for op in range(len(self.graph.ops))]
        usages = [self._op_usages(op) for op in range(len(self.graph.ops))]
        intervals = [self._op_interval(op) for op in range(len(self.graph.ops))]
        for number, uses in enumerate(self.uses):
            node = len(self.graph.ops) + number
            costs.append(np.zeros(len(uses.states), dtype=np.int64))
            usages.append(self._uses_usages(uses))
            intervals.append(self._uses_interval(uses))
            for maker, output, count in uses.made:
                self._add(maker, node, self._made_table(uses, maker, output, count))
            for reader in uses.readers:
                self._add(node, reader, self._read_table(uses, reader))
        self._tie_weights()
        return StrategyGraph(
            node_costs=tuple(costs),
            holders=np.arange(len(usages)),
            usages=tuple(usages),
            intervals=np.array(intervals, dtype=np.int64).reshape(-1, 2),
            edges=np.array(self.edges, dtype=np.int64).reshape(-1, 2),
            edge_costs=tuple(self.tables),
            usage_limit=None if memory_limit_bytes is None else int(memory_limit_bytes),
        )

    def _add(self, first: int, second: int, table: NDArray[np.int64]) -> None:
        self.edges.append((first, second))
        self.tables.append(table)

    def _repeats(self, op: int) -> int:
        return self.graph.blocks[self.graph.ops[op].block].repeats

    # --- ops ----------------------------------------------------------------------------------

    def _op_costs(self, op: int) -> NDArray[np.int64]:
        repeats = self._repeats(op)
        costs = [round(repeats * price.total_s / NANOSECOND_S) for price in self.prices[op]]
        return np.array(costs, dtype=np.int64)

    def _op_usages(self, op: int) -> NDArray[np.int64]:
        repeats = self._repeats(op)
        held = [repeats * (price.weight_bytes + price.inner_bytes) for price in self.prices[op]]
        return np.array([math.ceil(x) for x in held], dtype=np.int64)

    def _op_interval(self, op: int) -> tuple[int, int]:
        end = 2 * len(self.graph.ops)
        if any(price.weight_bytes for price in self.prices[op]):
            return (0, end)
        return (op, end - op)

    def _tie_weights(self) -> None:
        """Ops that read the same weight hold it alike; one sum of gradients serves all of them.

        The first one's price has that sum where its own gradient is partial.
        """
        first: dict[int, int] = {}
        for op, call in enumerate(self.graph.ops):
            for t in dict.fromkeys(call.inputs):
                if not self.graph.tensors[t].parameter:
                    continue
                other = first.setdefault(t, op)
                if other != op:
                    mine = [self._held(op, s, t) for s in self.strategies[op]]
                    theirs = [self._held(other, s, t) for s in self.strategies[other]]
                    repeats = self._repeats(other)
                    table = [[self._tie_cost(t, a, b, repeats) for b in mine] for a in theirs]
                    self._add(other, op, np.array(table, dtype=np.int64))

    def _held(self, op: int, strategy: Strategy, t: int) -> Layout:
        return strategy.inputs[self.graph.ops[op].inputs.index(t)]

    def _tie_cost(self, t: int, first: Layout, other: Layout, repeats: int) -> int:
        if forward_of(first) != forward_of(other):
            return FORBIDDEN
        own = weight_sync_s(self.graph.tensors[t], first, (), self.mesh, self.training)
        both = weight_sync_s(self.graph.tensors[t], first, (other,), self.mesh, self.training)
        return round(repeats * (both - own) / NANOSECOND_S)

    # --- uses ---------------------------------------------------------------------------------

    def _made_table(self, uses: Uses, maker: int, output: int, count: int) -> NDArray[np.int64]:
        tensor = self.graph.tensors[uses.tensor]
        same = self.graph.ops[maker].block == uses.block
        keeps = same and uses.tensor in self.graph.ops[maker].saved
        rows: dict[Layout, list[int]] = {}
        for strategy in self.strategies[maker]:
            made = strategy.outputs[output]
            if made not in rows:
                rows[made] = [
                    FORBIDDEN
                    if keeps and made not in state
                    else round(
                        count * self.resharding.total_seconds(tensor, made, state) / NANOSECOND_S
                    )
                    for state in uses.states
                ]
        table = [rows[strategy.outputs[output]] for strategy in self.strategies[maker]]
        return np.array(table, dtype=np.int64)

    def _read_table(self, uses: Uses, reader: int) -> NDArray[np.int64]:
        read = [
            set(layouts_read(self.graph, reader, s, uses.tensor)) for s in self.strategies[reader]
        ]
        table = [[0 if x <= set(state) else FORBIDDEN for x in read] for state in uses.states]
        return np.array(table, dtype=np.int64)

    def _uses_usages(self, uses: Uses) -> NDArray[np.int64]:
        tensor = self.graph.tensors[uses.tensor]
        repeats = self.graph.blocks[uses.block].repeats if uses.is_kept else 1
        held = [
            repeats
            * sum(local_bytes(tensor, form, self.mesh) for form in {forward_of(x) for x in state})
            for state in uses.states
        ]
        return np.array([math.ceil(x) for x in held], dtype=np.int64)

    def _uses_interval(self, uses: Uses) -> tuple[int, int]:
        own = [m for m, _, _ in uses.made if self.graph.ops[m].block == uses.block]
        before = [m for m in own if m < min(uses.readers)]
        begin = before[0] if before else min(uses.readers)
        if not uses.is_kept:
            return (begin, max(uses.readers) + 1)
        keepers = [op for op in (*before, *uses.readers) if uses.tensor in self.graph.ops[op].saved]
        return (begin, 2 * len(self.graph.ops) - min(keepers))
