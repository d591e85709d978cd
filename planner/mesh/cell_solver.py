"""Solve one cell, and predict its best plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from planner.cell import Cell
from planner.chain.partition import labels_of, partition
from planner.chain.problem import Partition, PartitionProblem
from planner.chain.relaxed_bound import relaxed_bound
from planner.chain.solver import solve_integer
from planner.costs.costs import SimulatorCosts
from planner.costs.split_problem import SplitProblem
from planner.mesh.timeline_search import TimelineSearch
from profiles.errors import UnknownNameError
from simulator.values.plan import Plan
from simulator.values.prediction import Prediction

SOLVERS = ("auto", "dp", "ilp")
_CLOSED = 1e-4  # relative; a closed form this near to its timeline is not searched again
_MOST_PARTS = 6000  # variables of a linear program: more take longer than solving the cell
_ATTEMPTS = 4  # times a problem is solved again with less memory, if the prediction needs more

Problem = TypeVar("Problem", PartitionProblem, SplitProblem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """The result of solving a cell.

    bound_s  lower bound on the prediction of every plan of the cell; infinite if none fits
    plan, prediction   the best plan found, or None
    """

    bound_s: float
    plan: Plan | None = None
    prediction: Prediction | None = None

    @property
    def step_time_s(self) -> float:
        """Predicted seconds; infinite if nothing was found."""
        return self.prediction.step_time_s.value if self.prediction else np.inf


class CellSolver:
    """Refines cells: partition, plan, prediction.

    solver   `dp` and `auto` use the dynamic program, `ilp` the integer program
    """

    def __init__(self, costs: SimulatorCosts, *, solver: str, seed: int) -> None:
        if solver not in SOLVERS:
            raise UnknownNameError("solver", solver, SOLVERS, where="--solver")
        self.costs, self.solver, self.seed = costs, solver, seed

    def by_timeline(self, cell: Cell) -> SplitProblem:
        """The cell's problem for the timeline search, whatever its schedule."""
        problem = self.costs.split(cell)
        if cell.splits_backward:
            return problem
        # Separate F and B take no more time for any strategies: gathering sharded parameters counts
        # for half of each. A whole B keeps nothing for a W.
        whole = replace(cell, schedule="gpipe", degrees=replace(cell.degrees, vpp=1))
        halved = self.costs.problem(whole).costs
        return replace(
            problem,
            chain=replace(problem.chain, costs=halved),
            weight_bytes=tuple(np.zeros_like(figures) for figures in problem.weight_bytes),
        )

    def bounds(self, cell: Cell) -> Iterator[float]:
        """Lower bounds in seconds on the step of every plan of a cell, for any order of its blocks,
        each slower to compute and higher than the one before; infinite if none fits."""
        if not cell.pipelined:
            return
        problem, needs = self.costs.problem(cell), self.costs.rank_needs(cell)
        groups = len(set(problem.kinds)) * len(problem.strategies)
        if problem.num_stages * groups > _MOST_PARTS:
            return
        yield relaxed_bound(problem, needs)
        if cell.needs_timeline:  # others are solved exactly
            yield relaxed_bound(problem, needs, whole=True)

    def refine(self, cell: Cell, below: float, lower: float) -> Refinement:
        """The best plan of a cell below `below` seconds; `lower` is the cell's lower bound."""
        if cell.needs_timeline:
            return self._refine_by_timeline(cell, below, lower)
        solved = self._made(
            cell, self.costs.problem(cell), lambda problem, _: self._solve(problem, below, lower)
        )
        closed = solved.step_time_s <= solved.bound_s * (1 + _CLOSED)
        if solved.plan is None or closed or cell.degrees.pp == 1 or self.solver == "ilp":
            return solved
        # The closed form is below the timeline if the stages' times differ much.
        limit = min(below, solved.step_time_s)
        other = self._refine_by_timeline(cell, limit, solved.bound_s, known=solved.plan)
        if other.step_time_s < solved.step_time_s:
            return other
        return replace(solved, bound_s=max(solved.bound_s, other.bound_s))

    def _refine_by_timeline(
        self, cell: Cell, below: float, lower: float, known: Plan | None = None
    ) -> Refinement:
        """A good plan of the cell below `below` seconds, and a proven bound of at least `lower`.

        known  a plan of the cell to start from
        """
        begin = None if known is None else tuple(stage.first_block for stage in known.stages)

        def solve(problem: SplitProblem, is_first: bool) -> tuple[Partition | None, float]:
            search = TimelineSearch(problem)
            found = search.best(below, begin)
            if not is_first:
                return found, lower
            proved, better = search.proved(found.step_time_s if found else below)
            return better or found, max(lower, proved)

        return self._made(cell, self.by_timeline(cell), solve)

    def _made(
        self,
        cell: Cell,
        problem: Problem,
        solve: Callable[[Problem, bool], tuple[Partition | None, float]],
    ) -> Refinement:
        """Solve the problem, and predict the plan. While the prediction exceeds the memory,
        solve again with less memory. The bound is that of the first solution, which may use all
        memory."""
        bound = np.inf
        for attempt in range(_ATTEMPTS):
            found, proved = solve(problem, attempt == 0)
            bound = proved if attempt == 0 else bound
            if found is None:
                break
            plan = self.costs.plan(cell, found)
            prediction = self.costs.predict(plan)
            if prediction.fits:
                bound = min(bound, prediction.step_time_s.value)
                return Refinement(bound_s=bound, plan=plan, prediction=prediction)
            over = max(rank.peak_bytes - rank.capacity_bytes for rank in prediction.ranks)
            problem = problem.with_capacity(-over)
        return Refinement(bound_s=bound)

    def with_more(self, cell: Cell) -> Callable[[float], Partition | None]:
        """A function from additional bytes on every device to the cell's best partition."""
        if cell.needs_timeline:
            split = self.by_timeline(cell)
            return lambda more: TimelineSearch(split.with_capacity(more)).best()
        problem = self.costs.problem(cell)
        labels = labels_of(problem)
        return lambda more: partition(problem.with_capacity(more), labels=labels)

    def _solve(
        self, problem: PartitionProblem, below: float, lower: float
    ) -> tuple[Partition | None, float]:
        if self.solver == "ilp":
            answer = solve_integer(problem, seed=self.seed)
            found = answer.partition
            if found is None and answer.status != "infeasible":
                found = partition(problem)  # too large: its plan, the program's bound
            return found, max(lower, answer.bound_s)
        best = partition(problem, below=below)
        return best, best.step_time_s if best is not None else below
