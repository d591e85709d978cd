"""A smaller graph with the same optimum: nodes that determine each other become one.

Most edges of a sharded model forbid all pairs but a matching (an elementwise op follows its
input). Exact steps, repeated until nothing changes:

- arc consistency (Mackworth 1977): a strategy for which some neighbor has no partner is removed;
- an edge that allows only a one-to-one matching merges its two nodes, and all nodes with a single
  strategy become one;
- edges between the same two nodes are added up, and tables without cost are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.strategy_graph.problem import FORBIDDEN, Ints, Strategies, StrategyGraph, added

Tables = dict[tuple[int, int], Ints]
"""By pair of nodes, the lower one first, their costs; FORBIDDEN at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contraction:
    """A smaller problem and how its nodes decide those of the original one."""

    problem: StrategyGraph
    group: Ints
    """`[original nodes]`: the node of `problem` that decides each."""
    strategy: tuple[Ints, ...]
    """For each original node its strategy, by strategy of its group."""

    def expand(self, strategies: Strategies) -> Strategies:
        """A choice for the original nodes from one for `problem`."""
        return tuple(
            int(own[strategies[g]])
            for own, g in zip(self.strategy, self.group.tolist(), strict=True)
        )


def contract(problem: StrategyGraph) -> Contraction | None:
    """The contracted problem; None if forbidden costs leave no choice.

    A strategy of which one tensor alone exceeds the memory limit counts as forbidden.
    """
    costs = [np.minimum(values, FORBIDDEN) for values in problem.node_costs]
    if problem.usage_limit is not None:
        lives = (problem.intervals[:, 1] > problem.intervals[:, 0]).tolist()
        for node, usages, lived in zip(
            problem.holders.tolist(), problem.usages, lives, strict=True
        ):
            if lived and usages.max() > problem.usage_limit:
                costs[node][usages > problem.usage_limit] = FORBIDDEN
    tables = _summed(
        (u, v, np.minimum(table, FORBIDDEN))
        for (u, v), table in zip(problem.edges.tolist(), problem.edge_costs, strict=True)
    )
    group = np.arange(problem.nodes)
    strategy = [np.arange(len(values)) for values in costs]
    size = (-1, -1, -1)
    while size != (len(costs), sum(map(len, costs)), len(tables)):
        size = (len(costs), sum(map(len, costs)), len(tables))
        kept = _arc_consistent(costs, tables)
        if kept is None:
            return None
        costs = [values[k] for values, k in zip(costs, kept, strict=True)]
        tables = {(u, v): _part(t, kept[u], kept[v]) for (u, v), t in tables.items()}
        root, partner = _matched(costs, tables)
        merged, tables = _merge(costs, tables, root, partner)
        strategy = [
            own[kept[g]][partner[g]] for own, g in zip(strategy, group.tolist(), strict=True)
        ]
        number = np.cumsum(root == np.arange(len(root))) - 1
        group = number[root[group]]
        costs = [merged[r] for r in np.flatnonzero(root == np.arange(len(root))).tolist()]
        tables = {(int(number[u]), int(number[v])): t for (u, v), t in tables.items()}
    keys, tensors = _tensors(problem, group, strategy)
    return Contraction(
        problem=StrategyGraph(
            node_costs=tuple(costs),
            holders=keys[:, 0],
            usages=tensors,
            intervals=keys[:, 1:],
            edges=np.array(list(tables), dtype=np.int64).reshape(-1, 2),
            edge_costs=tuple(tables.values()),
            usage_limit=problem.usage_limit,
        ),
        group=group,
        strategy=tuple(strategy),
    )


def _part(table: Ints, rows: Ints, columns: Ints) -> Ints:
    if table.shape == (len(rows), len(columns)):
        return table
    return table[rows[:, None], columns]


def _summed(tables: Iterable[tuple[int, int, Ints]]) -> Tables:
    """Each pair of nodes once, lower node first; tables that are zero everywhere are left out."""
    found: Tables = {}
    for u, v, table in tables:
        key, oriented = ((u, v), table) if u < v else ((v, u), table.T)
        known = found.get(key)
        found[key] = oriented if known is None else added(known, oriented)
    return {key: table for key, table in sorted(found.items()) if table.any()}


def _arc_consistent(costs: list[Ints], tables: Tables) -> list[Ints] | None:
    """The strategies of each node that are left; None if a node has none."""
    alive = [values < FORBIDDEN for values in costs]
    allowed: dict[tuple[int, int], NDArray[np.bool_]] = {}
    near: list[list[tuple[int, int]]] = [[] for _ in costs]
    for (u, v), table in tables.items():
        if table.max() >= FORBIDDEN:
            allowed[u, v] = table < FORBIDDEN
            near[u].append((u, v))
            near[v].append((u, v))
    waiting = dict.fromkeys(allowed)
    while waiting:
        u, v = next(iter(waiting))
        del waiting[u, v]
        pairs = allowed[u, v]
        for node, left in (
            (u, alive[u] & pairs[:, alive[v]].any(axis=1)),
            (v, alive[v] & pairs[alive[u]].any(axis=0)),
        ):
            if left.sum() < alive[node].sum():
                alive[node] = left
                waiting.update(dict.fromkeys(near[node]))
    kept = [np.flatnonzero(left) for left in alive]
    return kept if all(map(len, kept)) else None


def _matched(costs: list[Ints], tables: Tables) -> tuple[Ints, list[Ints]]:
    """For each node the node that it is merged into, and its strategy by that node's strategy."""
    near: dict[int, list[tuple[int, Ints]]] = {}
    for (u, v), table in tables.items():
        if table.shape[0] != table.shape[1] or len(table) == 1:
            continue
        allowed = table < FORBIDDEN
        there, back = allowed.argmax(axis=1), allowed.argmax(axis=0)
        if int(allowed.sum()) == len(table) and len(set(there.tolist())) == len(table):
            near.setdefault(u, []).append((v, there))
            near.setdefault(v, []).append((u, back))
    root = np.arange(len(costs))
    partner = [np.arange(len(values)) for values in costs]
    decided = [node for node, values in enumerate(costs) if len(values) == 1]
    root[decided] = decided[0] if decided else 0
    seen: set[int] = set()
    for start in sorted(near):
        if start in seen:
            continue
        seen.add(start)
        reached = [start]
        for node in reached:
            for other, matching in near[node]:
                if other not in seen:
                    seen.add(other)
                    root[other] = start
                    partner[other] = matching[partner[node]]
                    reached.append(other)
    return root, partner


def _merge(
    costs: list[Ints], tables: Tables, root: Ints, partner: list[Ints]
) -> tuple[list[Ints], Tables]:
    """Costs, those of roots with their groups', and tables between roots.

    A table with a node of one strategy is a cost of its other node.
    """
    merged = list(costs)
    for node, r in enumerate(root.tolist()):
        if r != node:
            merged[r] = added(merged[r], costs[node][partner[node]])
    between: list[tuple[int, int, Ints]] = []
    for (u, v), table in tables.items():
        ru, rv = int(root[u]), int(root[v])
        if ru == rv:
            merged[ru] = added(merged[ru], table[partner[u], partner[v]])
        elif len(table) == 1:
            merged[rv] = added(merged[rv], table[0, partner[v]])
        elif table.shape[1] == 1:
            merged[ru] = added(merged[ru], table[partner[u], 0])
        else:
            between.append((ru, rv, table[partner[u][:, None], partner[v]]))
    return merged, _summed(between)


def _tensors(
    problem: StrategyGraph, group: Ints, strategy: list[Ints]
) -> tuple[Ints, tuple[Ints, ...]]:
    """`[tensors, 3]` holder, begin and end, and usages of the contracted problem; tensors of one
    group that live at the same times are added up."""
    found: dict[tuple[int, int, int], Ints] = {}
    for node, (begin, end), usages in zip(
        problem.holders.tolist(), problem.intervals.tolist(), problem.usages, strict=True
    ):
        own = usages[strategy[node]]
        if end > begin and own.any():
            key = (int(group[node]), begin, end)
            known = found.get(key)
            found[key] = own if known is None else known + own
    keys = np.array(list(found), dtype=np.int64).reshape(-1, 3)
    return keys, tuple(found.values())
