"""The exact optimum without a memory limit, by variable elimination.

Bertele and Brioschi, Nonserial Dynamic Programming (1972): to eliminate a node, the sum of the
tables that contain it is minimized over its strategies, which leaves a table over its neighbors.
The order is greedy, the smallest table first. Work is exponential only in the width of the order,
and graphs of blocks are narrow: a Llama 70B block on a mesh of 2 x 4 takes 1.8 s, the integer
program 5.7 s (2026-11-24).
"""

from __future__ import annotations

import heapq
import math

import numpy as np

from shardwright_placements.strategy_graph.problem import FORBIDDEN, Ints, Strategies, StrategyGraph

MOST_ENTRIES = 20_000_000
"""A table of more entries (160 MB) ends the attempt."""


def eliminate(problem: StrategyGraph) -> Strategies | None:
    """The optimum, forbidden only if every choice is; None if a table would be too large."""
    sizes = [len(values) for values in problem.node_costs]
    order = _order(sizes, problem.edges.tolist())
    if order is None:
        return None
    tables: list[tuple[tuple[int, ...], Ints]] = [
        ((node,), values) for node, values in enumerate(problem.node_costs)
    ]
    for (u, v), table in zip(problem.edges.tolist(), problem.edge_costs, strict=True):
        tables.append(((u, v), table) if u < v else ((v, u), table.T))
    holding: list[set[int]] = [set() for _ in sizes]
    for index, (nodes, _) in enumerate(tables):
        for node in nodes:
            holding[node].add(index)
    steps: list[tuple[int, tuple[int, ...], Ints]] = []
    for node in order:
        scope = tuple(sorted({i for index in holding[node] for i in tables[index][0]}))
        joined = np.zeros([sizes[i] for i in scope], dtype=np.int64)
        for index in holding[node]:
            nodes, values = tables[index]
            joined += values.reshape([sizes[i] if i in nodes else 1 for i in scope])
            np.minimum(joined, FORBIDDEN, out=joined)
        axis = scope.index(node)
        rest = scope[:axis] + scope[axis + 1 :]
        steps.append((node, rest, joined.argmin(axis=axis)))
        used = set(holding[node])
        for other in rest:
            holding[other] -= used
            holding[other].add(len(tables))
        tables.append((rest, joined.min(axis=axis)))
    choice = [0] * len(sizes)
    for node, rest, best in reversed(steps):
        choice[node] = int(best[tuple(choice[i] for i in rest)])
    return tuple(choice)


def _order(sizes: list[int], edges: list[tuple[int, int]]) -> list[int] | None:
    """The order of elimination, smallest table first; None if one is too large."""
    near: list[set[int]] = [set() for _ in sizes]
    for u, v in edges:
        near[u].add(v)
        near[v].add(u)

    def entries(node: int) -> int:
        return sizes[node] * math.prod(sizes[i] for i in near[node])

    queue = [(entries(node), node) for node in range(len(sizes))]
    heapq.heapify(queue)
    order: dict[int, None] = {}
    while queue:
        smallest, node = heapq.heappop(queue)
        if node in order or smallest != entries(node):
            continue
        if smallest > MOST_ENTRIES:
            return None
        order[node] = None
        for other in near[node]:
            near[other] |= near[node]
            near[other] -= {node, other}
        for other in near[node]:
            heapq.heappush(queue, (entries(other), other))
    return list(order)
