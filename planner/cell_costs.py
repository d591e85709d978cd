"""What the search asks of a cost model, and how one cell is solved and predicted with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from planner.bound import ChainTotals
from planner.branch_and_bound import Refinement
from planner.cell import Cell
from planner.interleave import Interleaver
from planner.interleaved_problem import InterleavedProblem
from planner.loop_layers import LoopBuilder
from planner.partition import labels_of, partition
from planner.problem import Partition, PartitionProblem, with_capacity
from planner.solver import solve_integer
from planner.split_problem import SplitProblem
from planner.split_search import Splitter
from profiles.errors import UnknownNameError
from simulator.plan import Plan
from simulator.prediction import Prediction

SOLVERS = ("auto", "dp", "ilp")
_WORTH = 1.1  # of the best plan so far: slower cells are told apart only as runners-up
_ACTIONS = 1_000_000  # of all timelines of an interleaved cell
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

    def interleaved(self, cell: Cell) -> InterleavedProblem:
        """The problem of an interleaved cell."""

    def split(self, cell: Cell) -> SplitProblem:
        """The problem of a cell that splits the backward."""

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
        self._interleavers: dict[Cell, Interleaver] = {}
        self._incumbent_s = np.inf
        self._splitters: dict[Cell, Splitter] = {}
        self._closers: dict[Cell, Splitter] = {}
        self._last: tuple[Cell, PartitionProblem] | None = None
        self._solved: dict[Cell, tuple[float, Partition | None, float]] = {}

    def sharper_bound(self, cell: Cell) -> float:
        """Seconds that no plan can beat of an interleaved cell or of one that splits the backward,
        infinite where none fits; 0 for other schedules, whose refinement is exact. Where that is
        well above the best plan so far, it is only known to be well above."""
        if cell.splits_backward:
            splitter = self._splitter(cell)
            found = splitter.bound(_WORTH * self._incumbent_s)
            self._incumbent_s = min(self._incumbent_s, splitter.known_s)
            return found
        return self._interleaver(cell).bound_s if cell.schedule == "interleaved" else 0.0

    def exact_bound(self, cell: Cell, below: float, lower: float) -> float:
        """The same for every schedule, short of a prediction: what the partition that is best on
        its own takes, or `below` where none is under that. `refine` then starts from it."""
        if cell.splits_backward:
            return self._splitter(cell).bound(below)
        if cell.schedule == "interleaved":
            return self._interleaver(cell).bound_s
        problem = self._problem(cell)
        self._solved[cell] = (below, *self._solve(problem, below, lower))
        return self._solved[cell][2]

    def _problem(self, cell: Cell) -> PartitionProblem:
        if self._last is None or self._last[0] != cell:
            self._last = (cell, self.costs.problem(cell))
        return self._last[1]

    def _interleaver(self, cell: Cell) -> Interleaver:
        if cell not in self._interleavers:
            self._interleavers[cell] = Interleaver(self.costs.interleaved(cell))
        return self._interleavers[cell]

    def _splitter(self, cell: Cell) -> Splitter:
        if cell not in self._splitters:
            self._splitters[cell] = Splitter(self.by_timeline(cell))
        return self._splitters[cell]

    def by_timeline(self, cell: Cell) -> SplitProblem:
        """The problem of a cell for the search by timelines, whatever its schedule."""
        problem = self.costs.split(cell)
        if cell.splits_backward:
            return problem
        # F and B apart take no more than they do whatever the strategies: gathering sharded
        # parameters counts for half of each. A whole B sets nothing aside for a W.
        halved = self.costs.problem(replace(cell, schedule="gpipe", vpp=1)).costs
        chain = replace(problem.chain, costs=halved)
        return replace(
            problem,
            held=replace(problem.held, chain=chain),
            weight_bytes=tuple(np.zeros_like(figures) for figures in problem.weight_bytes),
        )

    def refine(self, cell: Cell, below: float, lower: float) -> Refinement:
        """The best plan of a cell that can be under `below` seconds; `lower` is its bound."""
        solved = self._refine(cell, below, lower)
        self._incumbent_s = min(self._incumbent_s, solved.step_time_s)
        return solved

    def _refine(self, cell: Cell, below: float, lower: float) -> Refinement:
        if cell.splits_backward:
            return self._refine_split(cell, below, lower)
        if cell.schedule == "interleaved":
            return self._refine_interleaved(cell, below, lower)
        problem = self._problem(cell)
        bound: float | None = None
        for attempt in range(_ATTEMPTS):
            known, found, proved = self._solved.get(cell, (-np.inf, None, 0.0))
            if attempt or known < below:
                found, proved = self._solve(problem, below, lower)
            # Only the first problem has all the memory: what is proved of the others is not of it.
            bound = proved if bound is None else bound
            if found is None:
                break
            plan = self.costs.plan(cell, found)
            prediction = self.costs.predict(plan)
            if prediction.fits:
                return Refinement(cell=cell, bound_s=bound, plan=plan, prediction=prediction)
            problem = with_capacity(problem, -_over(prediction))
        return Refinement(cell=cell, bound_s=lower if bound is None else bound)

    def _refine_interleaved(self, cell: Cell, below: float, lower: float) -> Refinement:
        """A good plan of the cell with what is proved of all of them."""
        interleaver = self._interleaver(cell)
        bound = max(lower, interleaver.bound_s)
        for _ in range(_ATTEMPTS):
            found = interleaver.best(below) if bound < below else None
            if found is None or found.step_time_s >= below:
                break
            plan = self.costs.plan(cell, found)
            prediction = self.costs.predict(plan)
            if prediction.fits:
                return Refinement(cell=cell, bound_s=bound, plan=plan, prediction=prediction)
            interleaver = Interleaver(interleaver.problem.with_capacity(-_over(prediction)))
        return Refinement(cell=cell, bound_s=bound)

    def _refine_split(self, cell: Cell, below: float, lower: float) -> Refinement:
        """The best plan of a cell that splits the backward, or a good one with what is proved."""
        return self._split_refinement(self._splitter(cell), cell, below, lower)

    def _split_refinement(
        self, splitter: Splitter, cell: Cell, below: float, lower: float, effort: float = 1.0
    ) -> Refinement:
        bound = lower
        for attempt in range(_ATTEMPTS):
            split = splitter.best(below, effort)
            # Only the first problem has all the memory: what is proved of the others is not of it.
            bound = max(bound, split.bound_s) if attempt == 0 else bound
            if split.partition is None or split.step_time_s >= below:
                break
            plan = self.costs.plan(cell, split.partition)
            prediction = self.costs.predict(plan)
            if prediction.fits:
                return Refinement(cell=cell, bound_s=bound, plan=plan, prediction=prediction)
            splitter = _closing(splitter.problem.with_capacity(-_over(prediction)), bound)
        return Refinement(cell=cell, bound_s=bound)

    def refine_by_timeline(self, cell: Cell, below: float, lower: float) -> Refinement:
        """As `refine`, by the solver that knows the timeline of every schedule but interleaved."""
        return self._refine_split(cell, below, lower)

    def close(self, known: Refinement, below: float, effort: float = 1.0) -> Refinement:
        """A refined cell with a better bound or plan, by the search that knows every schedule's
        timeline; what is no better than `below` need not be told apart. `effort` is the share of
        the work that it may take."""
        cell = known.cell
        if cell.schedule == "none" or self.solver == "ilp":
            return known
        if cell.splits_backward:
            # Refined to its end already, unless it is another order's.
            return known if known.plan else self._refine_split(cell, below, known.bound_s)
        if cell not in self._closers:
            self._closers[cell] = _closing(self.by_timeline(cell), known.bound_s)
        splitter = self._closers[cell]
        if known.plan is not None:
            splitter.consider(_partition_of(known.plan, splitter.problem.chain.strategies))
        found = self._split_refinement(splitter, cell, below, known.bound_s, effort)
        if not splitter.has_ways:
            del self._closers[cell]  # built for a time that is too long: a better plan may do
        if found.step_time_s < known.step_time_s:
            return found
        return replace(known, bound_s=min(found.bound_s, known.step_time_s))

    def with_more(self, cell: Cell) -> Callable[[float], Partition | None]:
        """A function from bytes more on every device to the cell's best partition."""
        if cell.schedule == "interleaved":
            chained = self.costs.interleaved(cell)
            return lambda more: Interleaver(chained.with_capacity(more)).best()
        if cell.splits_backward:
            split = self.costs.split(cell)
            return lambda more: Splitter(split.with_capacity(more)).any_plan()
        problem = self.costs.problem(cell)
        labels = labels_of(problem)
        return lambda more: partition(with_capacity(problem, more), labels=labels)

    def _solve(
        self, problem: PartitionProblem, below: float, lower: float
    ) -> tuple[Partition | None, float]:
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
        within its deterministic effort. Interleaved and split cells have no such proof."""
        if cell.schedule == "interleaved" or cell.splits_backward:
            return False
        problem = self.costs.problem(cell)
        found = partition(problem)
        if found is None:
            return False
        answer = solve_integer(
            problem, hint=found, seed=self.seed, workers=self.workers, effort=effort
        )
        return answer.certifies(found.step_time_s)


def _closing(problem: SplitProblem, least_s: float) -> Splitter:
    """The search by timelines; no plan is known to take less than `least_s`."""
    if problem.schedule.name != "interleaved":
        return Splitter(problem)
    return Splitter(problem, LoopBuilder(problem, least_s=least_s), actions=_ACTIONS)


def _partition_of(plan: Plan, strategies: tuple[str, ...]) -> Partition:
    names = {name: index for index, name in enumerate(strategies)}
    return Partition(
        starts=tuple(stage.first_block for stage in plan.stages),
        strategies=tuple(names[kind.value] for s in plan.stages for kind in s.recompute),
        step_time_s=0.0,
    )


def _over(prediction: Prediction) -> float:
    """Bytes by which the tightest rank exceeds its device."""
    return max(rank.peak_bytes - rank.capacity_bytes for rank in prediction.ranks)
