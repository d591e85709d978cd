"""What the search asks of a cost model, and how one cell is solved and predicted with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from planner.bound import ChainTotals
from planner.branch_and_bound import Refinement
from planner.cell import Cell
from planner.interleave import InterleavedProblem, partition_interleaved
from planner.partition import labels_of, partition
from planner.problem import Partition, PartitionProblem, with_capacity
from planner.solver import solve_integer
from profiles.errors import UnknownNameError
from simulator.plan import Plan
from simulator.prediction import Prediction

SOLVERS = ("auto", "dp", "ilp")
_ATTEMPTS = 4  # times a plan is made again under less memory where the prediction needs more


class CellCosts(Protocol):
    """Prices of cells. `planner/costs.py` is the one that asks the simulator."""

    capacity_bytes: float
    """Usable memory of the largest device."""

    def totals(self, cell: Cell) -> ChainTotals:
        """What the bound of a cell needs."""

    def missing_bytes(self, cell: Cell) -> float:
        """Bytes that the cell surely lacks on some device; 0 or less where it may fit."""

    def problem(self, cell: Cell) -> PartitionProblem:
        """The partition problem; for `interleaved` its slots are the virtual stages."""

    def plan(self, cell: Cell, found: Partition) -> Plan:
        """The complete plan."""

    def predict(self, plan: Plan) -> Prediction:
        """The simulator's prediction."""


class CellSolver:
    """Refines cells: exact partition, plan, prediction.

    solver   `dp` and `auto` use the dynamic programme, `ilp` the integer programme
    """

    def __init__(self, costs: CellCosts, *, solver: str, seed: int, workers: int) -> None:
        if solver not in SOLVERS:
            raise UnknownNameError("solver", solver, SOLVERS, where="--solver")
        self.costs = costs
        self.solver = solver
        self.seed = seed
        self.workers = workers

    def refine(self, cell: Cell, below: float, lower: float) -> Refinement:
        """The best plan of a cell that can be under `below` seconds; `lower` is its bound."""
        problem = self.costs.problem(cell)
        bound: float | None = None
        for _ in range(_ATTEMPTS):
            found, proved = self._solve(cell, problem, below, lower)
            # Only the first problem has all the memory: what is proved of the others is not of it.
            bound = proved if bound is None else bound
            if found is None or (cell.schedule == "interleaved" and found.step_time_s >= below):
                break
            plan = self.costs.plan(cell, found)
            prediction = self.costs.predict(plan)
            if prediction.fits:
                return Refinement(cell=cell, bound_s=bound, plan=plan, prediction=prediction)
            over = max(rank.peak_bytes - rank.capacity_bytes for rank in prediction.ranks)
            problem = with_capacity(problem, -over)
        return Refinement(cell=cell, bound_s=lower if bound is None else bound)

    def with_more(self, cell: Cell) -> Callable[[float], Partition | None]:
        """A function from bytes more on every device to the cell's best partition."""
        problem = self.costs.problem(cell)
        if cell.schedule == "interleaved":
            return lambda more: partition_interleaved(
                InterleavedProblem(chain=with_capacity(problem, more), num_ranks=cell.pp)
            )
        labels = labels_of(problem)
        return lambda more: partition(with_capacity(problem, more), labels=labels)

    def _solve(
        self, cell: Cell, problem: PartitionProblem, below: float, lower: float
    ) -> tuple[Partition | None, float]:
        if cell.schedule == "interleaved":
            # A good split, not a proven one: the bound of the cell stays as it was.
            chain = InterleavedProblem(chain=problem, num_ranks=cell.pp)
            return partition_interleaved(chain), lower
        if self.solver == "ilp":
            answer = solve_integer(problem, seed=self.seed, workers=self.workers)
            found = answer.partition
            if found is None and answer.status != "infeasible":
                found = partition(
                    problem
                )  # too large: the plan is the programme's, its bound stays
            return found, max(lower, answer.bound_s)
        best = partition(problem, below=below)
        return best, best.step_time_s if best is not None else below

    def certified(self, cell: Cell, effort: float) -> bool:
        """True where the integer programme proves the dynamic programme's partition of a cell,
        within its deterministic effort. Interleaved cells have no such proof."""
        if cell.schedule == "interleaved":
            return False
        problem = self.costs.problem(cell)
        found = partition(problem)
        if found is None:
            return False
        answer = solve_integer(
            problem, hint=found, seed=self.seed, workers=self.workers, effort=effort
        )
        return answer.certifies(found.step_time_s)
