"""Why nothing fits: the plan that comes nearest, its tight stage, and the term that binds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.cell import Cell
from planner.cell_costs import CellSolver
from planner.problem import Partition, PartitionProblem, with_capacity
from simulator.plan_file import Infeasibility, Relaxation
from simulator.prediction import RankMemory

_CELLS_TRIED = 8  # cells with the least missing memory that are solved for the nearest plan
_PRECISION = 0.005  # of the capacity, to which the missing memory is found

_TERMS = {
    "parameters_bytes": "parameters",
    "gradients_bytes": "gradients",
    "optimizer_bytes": "optimizer states",
    "activations_bytes": "activations",
    "transient_bytes": "working memory of one block",
    "communication_bytes": "communication buffers",
}


def nearest_misses(cells: Sequence[Cell], missing: Sequence[float]) -> list[Cell]:
    """The cells that lack least by their bound, at most a handful, nearest first."""
    order = sorted(range(len(cells)), key=lambda index: (missing[index], cells[index]))
    return [cells[index] for index in order[:_CELLS_TRIED]]


def explain_infeasible(
    solver: CellSolver, cells: Sequence[Cell], relaxations: tuple[Relaxation, ...]
) -> Infeasibility:
    """The nearest of the plans of `cells`: the one that fits with the least memory more.

    cells  from `nearest_misses`; none of them has a plan that fits
    """
    best: tuple[float, Cell, Partition] | None = None
    for cell in cells:
        problem = solver.costs.problem(cell)
        found = _least_more(solver, cell, problem, best[0] if best else np.inf)
        if found is not None and (best is None or found[0] < best[0]):
            best = (found[0], cell, found[1])
    assert best is not None  # with enough memory any cell has a plan
    cell = best[1]
    plan = solver.costs.plan(cell, best[2])
    ranks = solver.costs.predict(plan).ranks
    tight = max(ranks, key=lambda rank: (rank.peak_bytes - rank.capacity_bytes, -rank.rank))
    stage = plan.stages_of(_pipeline_rank(tight, ranks))[0]
    return Infeasibility(
        nearest=str(cell),
        stage=stage,
        term=largest_term(tight),
        needed_bytes=tight.peak_bytes,
        capacity_bytes=tight.capacity_bytes,
        relaxations=relaxations,
    )


def largest_term(memory: RankMemory) -> str:
    """What takes most of a rank's peak."""
    return _TERMS[max(_TERMS, key=lambda name: getattr(memory, name))]


def _pipeline_rank(tight: RankMemory, ranks: Sequence[RankMemory]) -> int:
    """Position among the pipeline ranks: the prediction has one entry for each, in order."""
    return next(index for index, rank in enumerate(ranks) if rank is tight)


def _least_more(
    solver: CellSolver, cell: Cell, problem: PartitionProblem, limit: float
) -> tuple[float, Partition] | None:
    """The least memory more with which the cell has a plan, and that plan; None above `limit`."""
    step = max(slot.capacity_bytes for slot in problem.slots) * _PRECISION
    low, high = 0.0, step
    found = None
    while low < limit:
        found = solver.solve(cell, with_capacity(problem, high), np.inf)
        if found is not None:
            break
        low, high = high, 2 * high
    if found is None:
        return None
    while high - low > step:
        middle = (low + high) / 2
        fitting = solver.solve(cell, with_capacity(problem, middle), np.inf)
        if fitting is None:
            low = middle
        else:
            high, found = middle, fitting
    return high, found
