"""The exact optimum without a memory limit: variables eliminated one after the other.

Bertele and Brioschi, Nonserial Dynamic Programming (1972): a node is minimised out of the sum of
the tables that hold it, which leaves a table over its neighbours; the order is greedy, the smallest
table first. Work is exponential in the width of the order alone, and graphs of blocks are narrow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.op_sharding.strategy_graph import FORBIDDEN, Ints, StrategyGraph

MOST_ENTRIES = 20_000_000
"""A table of more entries (160 MB) ends the attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """A least-cost choice, memory not considered; cost >= FORBIDDEN where nothing is allowed."""

    cost: int
    strategies: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    nodes: tuple[int, ...]
    values: NDArray[np.int64]


def eliminate(
    problem: StrategyGraph, *, node_costs: tuple[Ints, ...] | None = None
) -> Optimum | None:
    """The optimum, or None where a table would be too large.

    node_costs  in place of the problem's (prices of memory added, for a Lagrangian bound)
    """
    costs = node_costs if node_costs is not None else problem.node_costs
    sizes = [len(values) for values in costs]
    tables: list[_Table] = [_Table(nodes=(i,), values=v) for i, v in enumerate(costs)]
    for (u, v), table in zip(problem.edges.tolist(), problem.edge_costs, strict=True):
        if u < v:
            tables.append(_Table(nodes=(u, v), values=table))
        else:
            tables.append(_Table(nodes=(v, u), values=table.T))
    holding: list[set[int]] = [set() for _ in sizes]
    for index, one in enumerate(tables):
        for node in one.nodes:
            holding[node].add(index)
    steps: list[tuple[int, tuple[int, ...], NDArray[np.intp]]] = []
    left = set(range(len(sizes)))
    total = 0
    while left:
        node = min(left, key=lambda i: (_entries(i, tables, holding, sizes), i))
        scope = _scope(node, tables, holding)
        if math.prod(sizes[i] for i in scope) > MOST_ENTRIES:
            return None
        joined = np.zeros([sizes[i] for i in scope], dtype=np.int64)
        for index in holding[node]:
            joined += _spread(tables[index], scope)
            np.minimum(joined, FORBIDDEN, out=joined)
        axis = scope.index(node)
        rest = tuple(i for i in scope if i != node)
        steps.append((node, rest, joined.argmin(axis=axis)))
        made = joined.min(axis=axis)
        for index in list(holding[node]):
            for other in tables[index].nodes:
                holding[other].discard(index)
        if rest:
            for other in rest:
                holding[other].add(len(tables))
            tables.append(_Table(nodes=rest, values=made))
        else:
            total += int(made)
        left.discard(node)
    choice = [0] * len(sizes)
    for node, rest, best in reversed(steps):
        choice[node] = int(best[tuple(choice[i] for i in rest)])
    return Optimum(cost=total, strategies=tuple(choice))


def _scope(node: int, tables: list[_Table], holding: list[set[int]]) -> tuple[int, ...]:
    return tuple(sorted({i for index in holding[node] for i in tables[index].nodes}))


def _entries(node: int, tables: list[_Table], holding: list[set[int]], sizes: list[int]) -> int:
    return math.prod(sizes[i] for i in _scope(node, tables, holding))


def _spread(table: _Table, scope: tuple[int, ...]) -> NDArray[np.int64]:
    """The table with axes of length 1 for the nodes that it lacks; nodes are sorted in both."""
    shape = iter(table.values.shape)
    return table.values.reshape([next(shape) if i in table.nodes else 1 for i in scope])
