"""The weights of known paths under which the shortest of the known plans is longest."""

from __future__ import annotations

import numpy as np

from planner.problem import Array


def best_weighting(lengths: Array) -> tuple[float, Array]:
    """Weights of the paths, sum 1, under which the shortest of the plans is longest, and its
    length; `lengths` [plans, paths]. By OR-tools' GLOP.

    >>> value, weights = best_weighting(np.asarray([[4.0, 0.0], [0.0, 4.0]]))
    >>> value, weights.tolist()
    (2.0, [0.5, 0.5])
    """
    from ortools.linear_solver import pywraplp

    scale = float(np.abs(lengths).max()) or 1.0
    solver = pywraplp.Solver.CreateSolver("GLOP")
    shortest = solver.NumVar(-solver.infinity(), solver.infinity(), "shortest")
    weights = [solver.NumVar(0.0, 1.0, "") for _ in range(lengths.shape[1])]
    whole = solver.Constraint(1.0, 1.0)
    for weight in weights:
        whole.SetCoefficient(weight, 1.0)
    for row in (lengths / scale).tolist():
        plan = solver.Constraint(0.0, solver.infinity())
        plan.SetCoefficient(shortest, -1.0)
        for weight, length in zip(weights, row, strict=True):
            plan.SetCoefficient(weight, length)
    solver.Objective().SetCoefficient(shortest, 1.0)
    solver.Objective().SetMaximization()
    solver.Solve()
    found = np.maximum([weight.solution_value() for weight in weights], 0.0)
    return shortest.solution_value() * scale, np.asarray(found / found.sum())
