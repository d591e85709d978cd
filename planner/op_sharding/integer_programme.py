"""The cheapest strategies within a limit on memory: an integer programme, by HiGHS inside scipy.

Variables x of strategies are binary, y of pairs continuous: rows of y sum to the strategies of each
end (the local polytope of Wainwright and Jordan 2008), so y is whole where x is. Memory is one row
for each moment at which it could be exceeded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from planner.op_sharding.strategy_graph import FORBIDDEN, StrategyGraph

TOLERANCE = 1e-6
"""HiGHS's default tolerance on rows and its gap, as a part of the cost; taken off every bound."""
SIZE = 1e6
"""Costs are scaled to this size: HiGHS's tolerances are absolute."""
INFEASIBLE = 2
"""scipy's status code."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Programmed:
    """The outcome of the integer programme."""

    bound: float
    """No allowed choice costs less; `inf` where there is none."""
    strategies: tuple[int, ...] | None
    """The best choice found; it keeps within memory."""
    is_least: bool
    """Whether nothing is cheaper, within HiGHS's tolerance."""


def solve_programme(
    problem: StrategyGraph, *, scale_cost: float, time_limit_s: float
) -> Programmed:
    """The least-cost strategies within the limit, or the best ones and a bound after the time.

    scale_cost  about the cost of the answer: it sets the size of HiGHS's absolute tolerances
    """
    scale = max(scale_cost, 1.0) / SIZE
    cost, most, matrix, low, high = _rows(problem)
    sizes = [len(values) for values in problem.node_costs]
    is_whole = np.zeros(len(cost))
    is_whole[: sum(sizes)] = 1
    answer = milp(
        cost / scale,
        integrality=is_whole,
        bounds=Bounds(0.0, most),
        constraints=LinearConstraint(matrix, low, high),
        options={"time_limit": max(time_limit_s, 0.1), "mip_rel_gap": 0.0},
    )
    if answer.status == INFEASIBLE:
        return Programmed(bound=np.inf, strategies=None, is_least=True)
    bound = -np.inf
    if answer.mip_dual_bound is not None:
        bound = scale * (float(answer.mip_dual_bound) - TOLERANCE * SIZE)
    strategies = None
    if answer.x is not None:
        parts = np.split(answer.x[: sum(sizes)], np.cumsum(sizes)[:-1])
        found = tuple(int(np.argmax(part)) for part in parts)
        strategies = found if fits(problem, found) else None
    is_least = answer.status == 0 and strategies is not None
    return Programmed(bound=bound, strategies=strategies, is_least=is_least)


def cost_of(problem: StrategyGraph, strategies: tuple[int, ...]) -> int:
    """The cost of one strategy per node."""
    nodes = sum(int(c[s]) for c, s in zip(problem.node_costs, strategies, strict=True))
    return nodes + sum(
        int(table[strategies[u], strategies[v]])
        for (u, v), table in zip(problem.edges.tolist(), problem.edge_costs, strict=True)
    )


def usage_over_time(problem: StrategyGraph, strategies: tuple[int, ...]) -> NDArray[np.int64]:
    """Bytes in use at every moment, `[moments]`."""
    changes = np.zeros(int(problem.intervals.max()) + 1, dtype=np.int64)
    for (begin, end), usages, chosen in zip(
        problem.intervals.tolist(), problem.node_usages, strategies, strict=True
    ):
        if end > begin:
            changes[begin] += usages[chosen]
            changes[end] -= usages[chosen]
    return np.cumsum(changes)


def fits(problem: StrategyGraph, strategies: tuple[int, ...]) -> bool:
    """Whether the strategies keep within the limit at every moment."""
    limit = problem.usage_limit
    return limit is None or int(usage_over_time(problem, strategies).max()) <= limit


def _rows(problem: StrategyGraph) -> tuple[Floats, Floats, csr_array, Floats, Floats]:
    """Cost and upper bound by variable; the matrix of the rows with their lower and upper bounds.

    Memory is in parts of the limit, so that rows are of the order of 1.
    """
    sizes = np.array([len(values) for values in problem.node_costs], dtype=np.int64)
    start = np.concatenate([[0], np.cumsum(sizes)])
    tables = [np.concatenate(problem.node_costs).astype(np.float64)]
    rows = [np.repeat(np.arange(len(sizes)), sizes)]
    columns = [np.arange(int(start[-1]))]
    values = [np.ones(int(start[-1]))]
    row, column = len(sizes), int(start[-1])
    for (u, v), table in zip(problem.edges.tolist(), problem.edge_costs, strict=True):
        height, width = table.shape
        tables.append(table.ravel().astype(np.float64))
        pairs = column + np.arange(table.size)
        rows += [
            row + np.repeat(np.arange(height), width),
            row + height + np.tile(np.arange(width), height),
            row + np.arange(height + width),
        ]
        ends = np.concatenate([start[u] + np.arange(height), start[v] + np.arange(width)])
        columns += [pairs, pairs, ends]
        values += [np.ones(2 * table.size), -np.ones(height + width)]
        row += height + width
        column += table.size
    cost = np.concatenate(tables)
    allowed = cost < FORBIDDEN
    low = np.zeros(row)
    low[: len(sizes)] = 1.0
    high = low.copy()
    limit = problem.usage_limit
    if limit is not None:
        moments = _moments(problem, limit)
        unit = max(limit, 1)
        for moment in moments:
            alive = np.flatnonzero(
                (problem.intervals[:, 0] <= moment) & (moment < problem.intervals[:, 1])
            )
            places = np.concatenate([np.arange(start[i], start[i + 1]) for i in alive])
            rows.append(np.full(len(places), row))
            columns.append(places)
            values.append(np.concatenate([problem.node_usages[i] for i in alive]) / unit)
            row += 1
        low = np.concatenate([low, np.full(len(moments), -np.inf)])
        high = np.concatenate([high, np.full(len(moments), limit / unit)])
    matrix = csr_array(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))),
        shape=(row, column),
    )
    return np.where(allowed, cost, 0.0), allowed.astype(np.float64), matrix, low, high


def _moments(problem: StrategyGraph, limit: int) -> list[int]:
    """Moments at which the largest strategies together exceed the limit and another set of nodes is
    alive than at a moment kept before."""
    largest = tuple(int(values.argmax()) for values in problem.node_usages)
    usage = usage_over_time(problem, largest)
    begins = np.unique(problem.intervals[:, 0])
    ends = np.unique(problem.intervals[:, 1])
    # The set alive is largest just before something ends: the last beginning before each end.
    at = begins[np.searchsorted(begins, ends) - 1]
    return [int(moment) for moment in np.unique(at) if usage[moment] > limit]
