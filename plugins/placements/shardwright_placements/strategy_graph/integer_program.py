"""The cheapest strategies within a limit on memory: an integer program, by HiGHS inside scipy.

Variables x of strategies are binary, y of pairs continuous: rows of y sum to the strategies of each
end (the local polytope of Wainwright and Jordan 2008), so y is integral if x is. Memory has a row
for some of the moments. The program is solved again with further moments if its answer exceeds the
limit there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from shardwright_placements.strategy_graph.problem import (
    FORBIDDEN,
    Ints,
    Strategies,
    StrategyGraph,
    sum_over_time,
)

TOLERANCE = 1e-6
"""HiGHS's default tolerance on rows and its gap, as a part of the cost; subtracted from bounds."""
SIZE = 1e6
"""Costs are scaled to this size: HiGHS's tolerances are absolute."""
INFEASIBLE = 2
"""scipy's status code."""
FIRST_MOMENTS, MORE_MOMENTS = 64, 16
"""Number of moments in the first program, and of those added at once."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramAnswer:
    """The outcome of the integer program."""

    bound: float
    """No allowed choice costs less; `inf` if there is none."""
    strategies: Strategies | None
    """The best choice found that is within memory."""
    is_least: bool
    """Whether it is optimal, within HiGHS's tolerance."""


def solve_program(
    problem: StrategyGraph, *, scale_cost: float, time_limit_s: float
) -> ProgramAnswer:
    """The cheapest strategies within the limit, or at the time limit the best ones and a bound.

    scale_cost  estimated cost of the answer. HiGHS's tolerances are absolute, so costs are scaled
                to it, and again if the answer is much cheaper
    """
    end = time.monotonic() + time_limit_s
    answer = _solve_scaled(problem, max(scale_cost, 1.0) / SIZE, end)
    if answer.is_least and answer.strategies is not None:
        cost = problem.cost_of(answer.strategies)
        if cost < scale_cost / 2:
            answer = _solve_scaled(problem, max(cost, 1.0) / SIZE, end)
    return answer


def _solve_scaled(problem: StrategyGraph, scale: float, end: float) -> ProgramAnswer:
    cost, most, pairs, sums = _pair_rows(problem)
    sizes = [len(values) for values in problem.node_costs]
    is_whole = np.zeros(len(cost))
    is_whole[: sum(sizes)] = 1
    moments = _binding_moments(problem)
    if len(moments) > FIRST_MOMENTS:
        moments = moments[np.linspace(0, len(moments) - 1, FIRST_MOMENTS).astype(int)]
    bound = -np.inf
    while True:
        memory, limits = _memory_rows(problem, moments, len(cost))
        answer = milp(
            cost / scale,
            integrality=is_whole,
            bounds=Bounds(0.0, most),
            constraints=[
                LinearConstraint(pairs, sums, sums),
                LinearConstraint(memory, -np.inf, limits),
            ],
            options={"time_limit": max(end - time.monotonic(), 0.1), "mip_rel_gap": 0.0},
        )
        if answer.status == INFEASIBLE:
            return ProgramAnswer(bound=np.inf, strategies=None, is_least=True)
        if answer.mip_dual_bound is not None:
            found = scale * (float(answer.mip_dual_bound) - TOLERANCE * SIZE)
            bound = max(bound, found)
        if answer.x is None:
            return ProgramAnswer(bound=bound, strategies=None, is_least=False)
        parts = np.split(answer.x[: sum(sizes)], np.cumsum(sizes)[:-1])
        strategies = tuple(int(np.argmax(part)) for part in parts)
        if problem.fits(strategies):
            return ProgramAnswer(
                bound=bound, strategies=strategies, is_least=bool(answer.status == 0)
            )
        more = np.union1d(moments, _overfull_moments(problem, strategies))
        if len(more) == len(moments) or time.monotonic() >= end:
            return ProgramAnswer(bound=bound, strategies=None, is_least=False)
        moments = more


def _pair_rows(problem: StrategyGraph) -> tuple[Floats, Floats, csr_array, Floats]:
    """Cost and upper bound per variable; matrix and right side of the rows: one strategy per node,
    and pairs that sum to the strategies of each end."""
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
    sums = np.zeros(row)
    sums[: len(sizes)] = 1.0
    matrix = csr_array(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))),
        shape=(row, column),
    )
    return np.where(allowed, cost, 0.0), allowed.astype(np.float64), matrix, sums


def _memory_rows(problem: StrategyGraph, moments: Ints, count: int) -> tuple[csr_array, Floats]:
    """A row of `count` variables for each moment, and its upper bound.

    Memory is divided by the limit minus the minimum usage of every node, so that rows are of the
    order of 1.
    """
    start = np.concatenate([[0], np.cumsum([len(values) for values in problem.node_costs])])
    used_parts, limits = np.zeros((len(moments), int(start[-1]))), np.zeros(len(moments))
    for row, moment in enumerate(moments.tolist()):
        limit = problem.usage_limit
        assert limit is not None  # without one there are no moments
        usages = problem.usages_at(moment)
        left = float(limit - sum(int(used.min()) for used in usages.values()))
        unit = max(left, 1e-6 * limit, 1.0)
        limits[row] = left / unit
        for node, used in usages.items():
            used_parts[row, start[node] : start[node + 1]] = (used - used.min()) / unit
    matrix = csr_array(used_parts)
    matrix.resize((len(moments), count))
    return matrix, limits


def _binding_moments(problem: StrategyGraph) -> Ints:
    """Moments at which the largest usages together exceed the limit; only one of consecutive
    moments with the same tensors."""
    if problem.usage_limit is None or not len(problem.usages):
        return np.zeros(0, dtype=np.int64)
    begins = np.unique(problem.intervals[:, 0])
    ends = np.unique(problem.intervals[:, 1])
    # The set of live tensors is largest just before one ends: the last beginning before each end.
    at = np.unique(begins[np.searchsorted(begins, ends) - 1])
    largest = np.array([int(used.max()) for used in problem.usages])
    return at[sum_over_time(problem.intervals, largest)[at] > problem.usage_limit]


def _overfull_moments(problem: StrategyGraph, strategies: Strategies) -> Ints:
    """The moments with the highest usage in the fullest periods above the limit."""
    assert problem.usage_limit is not None
    over = problem.usage_over_time(strategies) - problem.usage_limit
    turns = np.flatnonzero(np.diff(np.concatenate([[0], (over > 0).astype(np.int8), [0]])))
    peaks = [a + int(over[a:b].argmax()) for a, b in zip(turns[::2], turns[1::2], strict=True)]
    peaks.sort(key=lambda moment: -over[moment])
    return np.array(peaks[:MORE_MOMENTS], dtype=np.int64)
