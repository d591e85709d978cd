"""The integer programme of a small contracted graph, by HiGHS inside OR-tools.

Variables x of strategies are binary, y of pairs continuous: rows of y sum to the strategies of each
end (the local polytope of Wainwright and Jordan 2008), so y is whole where x is. Memory is a row
for each moment of a window, which grows by the moments that an answer overfills.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.intra_op.contraction import Contracted
from planner.intra_op.dual_ascent import overfull_moments
from planner.intra_op.memory import Memory, window
from planner.intra_op.strategy_graph import Ints

TOLERANCE = 1e-6
"""HiGHS's own tolerance on rows and reduced costs (its default); taken off every bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """What the integer programme says."""

    bound: float
    """No allowed choice of this graph costs less; `inf` where there is none."""
    choice: Ints | None
    """The best choice found that keeps within memory."""


def solve_exactly(
    contracted: Contracted, memory: Memory, moments: Ints, seconds_left: Callable[[], float]
) -> Exact:
    """The least-cost choice, or the best one and bound by the time none is left."""
    sizes = np.array([len(values) for values in contracted.costs], dtype=np.int64)
    bound = -np.inf
    while seconds_left() > 0.0:
        result, is_last = _solve_once(contracted, memory, moments, sizes, seconds_left())
        bound = max(bound, result.bound)
        if result.choice is None:
            return Exact(bound=bound, choice=None)
        over = overfull_moments(memory, result.choice, 16)
        if not len(over):
            return Exact(bound=bound, choice=result.choice)
        if is_last or not len(np.setdiff1d(over, moments)):
            break
        moments = np.union1d(moments, over)
    return Exact(bound=bound, choice=None)


def _solve_once(
    contracted: Contracted, memory: Memory, moments: Ints, sizes: Ints, seconds: float
) -> tuple[Exact, bool]:
    """The answer with the memory of these moments only, and whether time ended it."""
    from ortools.linear_solver import pywraplp

    solver = pywraplp.Solver.CreateSolver("HIGHS")
    solver.SetTimeLimit(max(int(seconds * 1000), 1))
    objective = solver.Objective()
    x = [[solver.BoolVar("") for _ in values] for values in contracted.costs]
    for own, values in zip(x, contracted.costs, strict=True):
        row = solver.Constraint(1.0, 1.0)
        for variable, cost in zip(own, values.tolist(), strict=True):
            row.SetCoefficient(variable, 1.0)
            objective.SetCoefficient(variable, cost)
    for u, v, table in contracted.tables:
        rows = [solver.Constraint(0.0, 0.0) for _ in x[u]]
        columns = [solver.Constraint(0.0, 0.0) for _ in x[v]]
        for row, variable in zip(rows + columns, x[u] + x[v], strict=True):
            row.SetCoefficient(variable, -1.0)
        for s, prices in enumerate(table.tolist()):
            for t, price in enumerate(prices):
                if price < np.inf:
                    pair = solver.NumVar(0.0, 1.0, "")
                    rows[s].SetCoefficient(pair, 1.0)
                    columns[t].SetCoefficient(pair, 1.0)
                    objective.SetCoefficient(pair, price)
    seen = window(memory, moments, sizes)
    # In parts of the capacity, so that rows are of the order of 1.
    limits = [solver.Constraint(-solver.infinity(), 1.0) for _ in moments]
    for node, own in enumerate(x):
        low, high = int(seen.low[node]), int(seen.high[node])
        block = seen.usage[seen.start[node] :][: len(own) * (high - low)]
        for variable, usages in zip(own, block.reshape(len(own), high - low), strict=True):
            for w in np.flatnonzero(usages).tolist():
                part = usages[w] / max(seen.capacity[low + w], 1e-9)
                limits[low + w].SetCoefficient(variable, float(part))
    objective.SetMinimization()
    parameters = pywraplp.MPSolverParameters()
    parameters.SetDoubleParam(parameters.RELATIVE_MIP_GAP, 0.0)
    status = solver.Solve(parameters)
    if status == pywraplp.Solver.INFEASIBLE:
        return Exact(bound=np.inf, choice=None), True
    if status not in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
        return Exact(bound=-np.inf, choice=None), True
    choice = np.array([int(np.argmax([v.solution_value() for v in own])) for own in x])
    value = float(objective.BestBound()) + contracted.constant
    return (
        Exact(bound=value - TOLERANCE * max(abs(value), 1.0), choice=choice),
        status != pywraplp.Solver.OPTIMAL,
    )
