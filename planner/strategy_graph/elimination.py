"""The exact optimum without a memory limit: variables eliminated one after the other.

Bertele and Brioschi, Nonserial Dynamic Programming (1972): a node is minimized out of the sum of
the tables that contain it, which leaves a table over its neighbors; the order is greedy, the
smallest table first. Work is exponential in the width of the order alone, and graphs of blocks are
narrow.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.strategy_graph.problem import FORBIDDEN, Ints, Strategies, StrategyGraph

MOST_ENTRIES = 20_000_000
"""A table of more entries (160 MB) ends the attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """A least-cost choice, memory not considered; cost >= FORBIDDEN if nothing is allowed."""

    cost: int
    strategies: Strategies


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    nodes: tuple[int, ...]
    values: NDArray[np.int64]


def eliminate(
    problem: StrategyGraph, *, node_costs: tuple[Ints, ...] | None = None
) -> Optimum | None:
    """The optimum, or None if a table would be too large.

    node_costs  in place of the problem's (prices of memory added, for a Lagrangian bound)
    """
    costs = node_costs if node_costs is not None else problem.node_costs
    sizes = [len(values) for values in costs]
    order = _order(sizes, problem.edges.tolist())
    if order is None:
        return None
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
    total = 0
    for node in order:
        scope = tuple(sorted({i for index in holding[node] for i in tables[index].nodes}))
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
    choice = [0] * len(sizes)
    for node, rest, best in reversed(steps):
        choice[node] = int(best[tuple(choice[i] for i in rest)])
    return Optimum(cost=total, strategies=tuple(choice))


def _order(sizes: Sequence[int], edges: Sequence[tuple[int, int]]) -> list[int] | None:
    """The nodes, each time the one with the smallest table; None if that is too large."""
    near: list[set[int]] = [set() for _ in sizes]
    for u, v in edges:
        near[u].add(v)
        near[v].add(u)

    def entries(node: int) -> int:
        return sizes[node] * math.prod(sizes[i] for i in near[node])

    queue = [(entries(node), node) for node in range(len(sizes))]
    heapq.heapify(queue)
    order: list[int] = []
    done = [False] * len(sizes)
    while queue:
        smallest, node = heapq.heappop(queue)
        if done[node] or smallest != entries(node):
            continue
        if smallest > MOST_ENTRIES:
            return None
        done[node] = True
        order.append(node)
        for other in near[node]:
            near[other] |= near[node]
            near[other] -= {node, other}
        for other in near[node]:
            heapq.heappush(queue, (entries(other), other))
    return order


def _spread(table: _Table, scope: tuple[int, ...]) -> NDArray[np.int64]:
    """The table with axes of length 1 for missing nodes; nodes are sorted in both."""
    shape = iter(table.values.shape)
    return table.values.reshape([next(shape) if i in table.nodes else 1 for i in scope])
