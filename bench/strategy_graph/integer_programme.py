"""The integer programme of a contracted graph, by HiGHS inside scipy.

Variables x of strategies are binary, y of pairs continuous: rows of y sum to the strategies of each
end (the local polytope of Wainwright and Jordan 2008), so y is whole where x is. Memory is a row
for each moment of a window, which grows by the moments that an answer overfills.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from bench.strategy_graph.contraction import Contracted, Floats
from bench.strategy_graph.dual_ascent import overfull_moments
from bench.strategy_graph.memory import Memory, Window, window
from planner.op_sharding.strategy_graph import Ints

TOLERANCE = 1e-6
"""HiGHS's own tolerance on rows and its gap (defaults), as a part of the cost that the programme
decides; taken off every bound."""
SIZE = 1e6
"""The cost is scaled to this size: HiGHS's tolerances are absolute."""
TIME_LIMIT, INFEASIBLE = 1, 2
"""scipy's status codes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """What the integer programme says."""

    bound: float
    """No allowed choice of this graph costs less; `inf` where there is none."""
    choice: Ints | None
    """The best choice found that keeps within memory."""
    is_least: bool
    """Whether nothing is cheaper, within HiGHS's tolerance."""


def solve_exactly(
    contracted: Contracted,
    memory: Memory,
    moments: Ints,
    *,
    ceiling: float,
    seconds_left: Callable[[], float],
) -> Exact:
    """The least-cost choice, or the best one and bound by the time none is left.

    `ceiling` is a cost that is known to be enough; it sets the scale.
    """
    sizes = np.array([len(values) for values in contracted.costs], dtype=np.int64)
    scale = max(abs(ceiling - contracted.constant), 1.0) / SIZE
    bound, best, is_least = -np.inf, None, False
    while seconds_left() > 0.0:
        seen = window(memory, moments, sizes)
        found, choice, is_last = _solve_once(contracted, seen, memory.limit, scale, seconds_left())
        if found == np.inf:
            return Exact(bound=np.inf, choice=None, is_least=True)
        bound = max(bound, found * scale + contracted.constant - TOLERANCE * SIZE * scale)
        if choice is None:
            break
        over = overfull_moments(memory, choice, 16)
        if not len(over):
            best, is_least = choice, not is_last
            break
        if is_last or not len(np.setdiff1d(over, moments)):
            break
        moments = np.union1d(moments, over)
    return Exact(bound=bound, choice=best, is_least=is_least)


def _solve_once(
    contracted: Contracted, seen: Window, limit: float, scale: float, seconds: float
) -> tuple[float, Ints | None, bool]:
    """The scaled bound (without the constant), the choice, and whether time ended the solve."""
    cost, ceiling, matrix, low, high = _programme(contracted, seen, limit)
    sizes = [len(values) for values in contracted.costs]
    is_whole = np.zeros(len(cost))
    is_whole[: sum(sizes)] = 1
    answer = milp(
        cost / scale,
        integrality=is_whole,
        bounds=Bounds(0.0, ceiling),
        constraints=LinearConstraint(matrix, low, high),
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    if answer.status == INFEASIBLE:
        return np.inf, None, False
    found = -np.inf if answer.mip_dual_bound is None else float(answer.mip_dual_bound)
    if answer.x is None:
        return found, None, True
    parts = np.split(answer.x[: sum(sizes)], np.cumsum(sizes)[:-1])
    choice = np.array([int(np.argmax(part)) for part in parts], dtype=np.int64)
    return found, choice, answer.status == TIME_LIMIT


def _programme(
    contracted: Contracted, seen: Window, limit: float
) -> tuple[Floats, Floats, csr_array, Floats, Floats]:
    """Cost and upper bound by variable; the matrix of the rows with their lower and upper bounds.

    Memory is in parts of what is left at its moment, so that rows are of the order of 1.
    """
    sizes = np.array([len(values) for values in contracted.costs], dtype=np.int64)
    start = np.concatenate([[0], np.cumsum(sizes)])
    costs, upper = list(contracted.costs), [np.ones(int(start[-1]))]
    rows = [np.repeat(np.arange(len(sizes)), sizes)]
    columns = [np.arange(int(start[-1]))]
    values = [np.ones(int(start[-1]))]
    row, column = len(sizes), int(start[-1])
    for u, v, table in contracted.tables:
        allowed = np.isfinite(table)
        costs.append(np.where(allowed, table, 0.0).ravel())
        upper.append(allowed.ravel().astype(np.float64))
        height, width = table.shape
        pairs = column + np.arange(table.size)
        rows += [
            row + np.repeat(np.arange(height), width),
            row + height + np.tile(np.arange(width), height),
            row + np.arange(height + width),
        ]
        columns += [
            pairs,
            pairs,
            np.concatenate([start[u] + np.arange(height), start[v] + np.arange(width)]),
        ]
        values += [np.ones(2 * table.size), -np.ones(height + width)]
        row += height + width
        column += table.size
    low = np.zeros(row)
    low[: len(sizes)] = 1.0
    high = low.copy()
    blocks = [
        seen.usage[seen.start[i] :][: sizes[i] * (seen.high[i] - seen.low[i])].reshape(sizes[i], -1)
        if seen.high[i] > seen.low[i]
        else np.zeros((int(sizes[i]), 0))
        for i in range(len(sizes))
    ]
    most = np.zeros(len(seen.moments))
    for i, block in enumerate(blocks):
        most[seen.low[i] : seen.high[i]] += block.max(axis=0, initial=0.0)
    binds = most > seen.capacity
    number = row + np.cumsum(binds) - 1
    unit = np.maximum(seen.capacity, 1e-6 * limit)
    for i, block in enumerate(blocks):
        place, moment = np.nonzero(block * binds[seen.low[i] : seen.high[i]])
        rows.append(number[seen.low[i] + moment])
        columns.append(start[i] + place)
        values.append(block[place, moment] / unit[seen.low[i] + moment])
    low = np.concatenate([low, np.full(int(binds.sum()), -np.inf)])
    high = np.concatenate([high, (seen.capacity / unit)[binds]])
    matrix = csr_array(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))),
        shape=(len(low), column),
    )
    return np.concatenate(costs), np.concatenate(upper), matrix, low, high
