"""A smaller graph with the same optimum: nodes that determine each other become one.

Most edges of a sharded program forbid all pairs but a matching (an elementwise op follows its
input). Exact steps, repeated until nothing changes:

- arc consistency (Mackworth 1977): a strategy that some neighbour has no partner for goes;
- a node left with one strategy is folded into its neighbours' costs;
- an edge that allows exactly a one-to-one matching merges its two nodes;
- edges between the same two nodes are added up, tables without cost are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.compiled import compiled
from planner.op_sharding.strategy_graph import FORBIDDEN, Ints, StrategyGraph

Floats = NDArray[np.float64]
Table = tuple[int, int, Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contracted:
    """The smaller graph: `inf` marks what is forbidden."""

    costs: list[Floats]
    """The costs of each remaining node's strategies, none of them `inf`."""
    tables: list[Table]
    """(node, node, table) with the first node below the second, each pair once."""
    constant: float
    """The cost of what is decided."""
    group: Ints
    """`[original nodes]`: the remaining node that each belongs to, -1 where it is decided."""
    choice: list[Ints]
    """For each original node its strategy by strategy of its group (by 0 where it is decided)."""


class NoStrategyError(Exception):
    """A node has no strategy left: without any regard to memory, nothing is allowed."""


def contract(graph: StrategyGraph) -> Contracted:
    """The contracted graph; raises NoStrategyError where forbidden costs leave nothing.

    A strategy that alone needs more memory than there is counts as forbidden.
    """
    costs = [_with_inf(values) for values in graph.node_costs]
    if graph.usage_limit is not None:
        lives = (graph.intervals[:, 1] > graph.intervals[:, 0]).tolist()
        for node, usages in enumerate(graph.node_usages):
            if lives[node] and usages.max() > graph.usage_limit:
                costs[node][usages > graph.usage_limit] = np.inf
    return _contract(
        Contracted(
            costs=costs,
            tables=_added_up(
                (first, second, _with_inf(table))
                for (first, second), table in zip(
                    graph.edges.tolist(), graph.edge_costs, strict=True
                )
            ),
            constant=0.0,
            group=np.arange(graph.nodes),
            choice=[np.arange(len(values)) for values in costs],
        )
    )


def restrict(contracted: Contracted, kept: list[Ints]) -> Contracted:
    """The same with only these strategies of each remaining node, contracted further.

    Raises NoStrategyError where that leaves nothing.
    """
    if not all(len(k) for k in kept):
        raise NoStrategyError
    return _contract(
        Contracted(
            costs=[values[k] for values, k in zip(contracted.costs, kept, strict=True)],
            tables=[(u, v, t[np.ix_(kept[u], kept[v])]) for u, v, t in contracted.tables],
            constant=contracted.constant,
            group=contracted.group,
            choice=_chosen(contracted.choice, contracted.group, kept),
        )
    )


def _chosen(choice: list[Ints], group: Ints, kept: list[Ints]) -> list[Ints]:
    """`choice` where only the kept strategies of each group are left."""
    return [c[kept[g]] if g >= 0 else c for c, g in zip(choice, group.tolist(), strict=True)]


def _contract(given: Contracted) -> Contracted:
    costs, tables, constant = list(given.costs), given.tables, given.constant
    group, choice = given.group, given.choice
    while True:
        size = (len(costs), sum(map(len, costs)), len(tables))
        costs, kept = _arc_consistent(costs, tables)
        choice = _chosen(choice, group, kept)
        tables = [(u, v, t[np.ix_(kept[u], kept[v])]) for u, v, t in tables]
        costs, tables, folded = _fold_decided(costs, tables)
        root, partner = _matched_groups(costs, tables)
        costs, tables = _merge(costs, tables, root, partner)
        choice = _chosen(choice, group, partner)
        # Nodes with one strategy are decided; the rest are numbered anew.
        decided = np.array([len(values) == 1 for values in costs], dtype=bool)
        is_root = root == np.arange(len(root))
        stays = is_root & ~decided
        number = np.where(stays, np.cumsum(stays) - 1, -1)
        constant += folded + sum(float(costs[r][0]) for r in np.flatnonzero(is_root & decided))
        group = np.where(group >= 0, number[root[group]], -1) if len(root) else group
        costs = [costs[r] for r in np.flatnonzero(stays).tolist()]
        tables = [(int(number[u]), int(number[v]), t) for u, v, t in tables]
        if (len(costs), sum(map(len, costs)), len(tables)) == size:
            break
    if not all(np.isfinite(values).all() for values in costs) or not np.isfinite(constant):
        raise NoStrategyError
    return Contracted(costs=costs, tables=tables, constant=constant, group=group, choice=choice)


def _with_inf(values: Ints) -> Floats:
    return np.where(values >= FORBIDDEN, np.inf, values.astype(np.float64))


def _added_up(tables: Iterable[Table]) -> list[Table]:
    """Each pair of nodes once, lower node first; tables that are zero everywhere are left out."""
    found: dict[tuple[int, int], Floats] = {}
    for u, v, table in tables:
        key = (u, v) if u < v else (v, u)
        oriented = table if u < v else table.T
        known = found.get(key)
        found[key] = oriented if known is None else known + oriented
    return [(u, v, t) for (u, v), t in sorted(found.items()) if t.any()]


@compiled
def _filter(
    first: Ints,
    second: Ints,
    start: Ints,
    flat: Floats,
    node_start: Ints,
    alive: NDArray[np.bool_],
    seen: NDArray[np.bool_],
) -> None:
    """Arc consistency in place: `alive` is by strategy, `flat` all tables end to end.

    `seen` is room for as many as the widest node has strategies.
    """
    changed = True
    while changed:
        changed = False
        for e in range(len(first)):
            a, b = node_start[first[e]], node_start[second[e]]
            rows = node_start[first[e] + 1] - a
            columns = node_start[second[e] + 1] - b
            for c in range(columns):
                seen[c] = False
            for r in range(rows):
                if not alive[a + r]:
                    continue
                found = False
                for c in range(columns):
                    if alive[b + c] and flat[start[e] + r * columns + c] < np.inf:
                        found = True
                        seen[c] = True
                if not found:
                    alive[a + r] = False
                    changed = True
            for c in range(columns):
                if alive[b + c] and not seen[c]:
                    alive[b + c] = False
                    changed = True


def _arc_consistent(costs: list[Floats], tables: list[Table]) -> tuple[list[Floats], list[Ints]]:
    """Costs of the strategies that are left, and their indices."""
    node_start = np.concatenate([[0], np.cumsum([len(values) for values in costs])]).astype(int)
    alive = np.isfinite(np.concatenate(costs)) if costs else np.zeros(0, dtype=bool)
    if tables:
        flat = np.concatenate([t.ravel() for _, _, t in tables])
        start = np.concatenate([[0], np.cumsum([t.size for _, _, t in tables])])[:-1].astype(int)
        _filter(
            np.array([u for u, _, _ in tables]),
            np.array([v for _, v, _ in tables]),
            start,
            flat,
            node_start,
            alive,
            np.empty(max(map(len, costs)), dtype=np.bool_),
        )
    kept = [
        np.flatnonzero(alive[a:b])
        for a, b in zip(node_start[:-1].tolist(), node_start[1:].tolist(), strict=True)
    ]
    if not all(len(k) for k in kept):
        raise NoStrategyError
    return [values[k] for values, k in zip(costs, kept, strict=True)], kept


def _fold_decided(
    costs: list[Floats], tables: list[Table]
) -> tuple[list[Floats], list[Table], float]:
    """Tables of decided nodes added to their neighbours' costs."""
    constant = 0.0
    left: list[Table] = []
    for u, v, table in tables:
        if table.shape == (1, 1):
            constant += float(table[0, 0])
        elif table.shape[0] == 1:
            costs[v] = costs[v] + table[0]
        elif table.shape[1] == 1:
            costs[u] = costs[u] + table[:, 0]
        else:
            left.append((u, v, table))
    return costs, left, constant


def _matched_groups(costs: list[Floats], tables: list[Table]) -> tuple[Ints, list[Ints]]:
    """For each node the node that it is merged into, and its strategy by that node's strategy."""
    neighbours: dict[int, list[tuple[int, Ints]]] = {}
    for u, v, table in tables:
        if table.shape[0] != table.shape[1]:
            continue
        allowed = np.isfinite(table)
        if np.count_nonzero(allowed) != len(table):
            continue
        there, back = allowed.argmax(axis=1), allowed.argmax(axis=0)
        if not (allowed.any(axis=1).all() and allowed.any(axis=0).all()):
            continue
        neighbours.setdefault(u, []).append((v, there))
        neighbours.setdefault(v, []).append((u, back))
    root = np.arange(len(costs))
    partner = [np.arange(len(values)) for values in costs]
    seen = np.zeros(len(costs), dtype=bool)
    for start in sorted(neighbours):
        if seen[start]:
            continue
        seen[start] = True
        reached = [start]
        for node in reached:
            for other, matching in neighbours[node]:
                if not seen[other]:
                    seen[other] = True
                    root[other] = start
                    partner[other] = matching[partner[node]]
                    reached.append(other)
    return root, partner


def _merge(
    costs: list[Floats], tables: list[Table], root: Ints, partner: list[Ints]
) -> tuple[list[Floats], list[Table]]:
    """Costs (of roots; others stay as they were) and tables between roots."""
    merged = list(costs)
    for node, r in enumerate(root.tolist()):
        if r != node:
            merged[r] = merged[r] + costs[node][partner[node]]
    between: list[Table] = []
    for u, v, table in tables:
        ru, rv = int(root[u]), int(root[v])
        if ru == rv:
            merged[ru] = merged[ru] + table[partner[u], partner[v]]
        else:
            between.append((ru, rv, table[np.ix_(partner[u], partner[v])]))
    return merged, _added_up(between)
