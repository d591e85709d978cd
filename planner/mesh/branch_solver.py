"""Solves the cells of a model with branches, including the order of the blocks.

1f1b, gpipe   the exact dynamic program over ideals (planner/chain)
others        the search for chains, on the traced order and on the order that the dynamic program
              finds for as many stages; the bound is the cell's own, which holds for every order.
              With at most MOST_ORDERS orders, the search runs on each of them, and the bound is the
              lowest of theirs

Models with more than MOST_IDEALS ideals are cut along those of a window (planner/chain/ideals.py);
their bound is the cell's own, the linear program's (planner/chain/relaxed_bound.py). If no other
order is predicted to be faster, the plan keeps the traced order.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.cell import Cell
from planner.chain.ideals import BlockLattice, lattice_of
from planner.chain.partition import partition
from planner.chain.problem import Partition, PartitionProblem
from planner.costs.costs import SimulatorCosts
from planner.costs.priced_model import Traced
from planner.mesh.cell_solver import CellSolver, Refinement
from profiles.model.graph import ModelGraph
from profiles.model.tracing.block_order import in_order
from simulator.values.plan import Plan, Stage

# Searches on 2026-11-30, for the same plans or plans within 0.5 %: two towers of 27 blocks (SigLIP
# So400m on 8 H100 with pp 4) 37 s with 350 ideals, 45 s with 700; three towers of 60 blocks in all
# 52 s, and 174 s. Two towers of 17 blocks have 324.
MOST_IDEALS = 350
MOST_ORDERS = 16  # with more orders, only two are searched
_BETTER = 1e-9  # relative; another order must be faster by more than this


def cell_solver(costs: SimulatorCosts, *, solver: str, seed: int) -> CellSolver:
    """The solver for cells with these costs: `CellSolver` if the model's blocks have only one
    order, otherwise `BranchSolver`."""
    graph = costs.model.graph(costs.model.micro_batches[0], 1)
    if not graph.branches or len(graph.chain) < 2:
        return CellSolver(costs, solver=solver, seed=seed)
    return BranchSolver(costs, lattice_of(graph, MOST_IDEALS), solver=solver, seed=seed)


class BranchSolver(CellSolver):
    """As CellSolver, for blocks with several legal orders; `with_more` uses the traced order."""

    def __init__(
        self, costs: SimulatorCosts, lattice: BlockLattice, *, solver: str, seed: int
    ) -> None:
        super().__init__(costs, solver=solver, seed=seed)
        self.lattice, self._ideals = lattice, costs.over_ideals(lattice)
        graph = costs.model.graph(costs.model.micro_batches[0], 1)
        self._entries = [ref.entry for ref in graph.chain]
        self._solvers: dict[tuple[int, ...], CellSolver] = {}
        self._cut: dict[tuple[int, int, int], list[tuple[int, ...]]] = {}

    def refine(self, cell: Cell, below: float, lower: float) -> Refinement:
        """The best plan of a cell below `below` seconds; `lower` is the cell's lower bound."""
        best = super().refine(cell, below, lower)
        complete, timed = self.lattice.complete, cell.needs_timeline
        if cell.degrees.pp == 1 or (self.lattice.is_chain and complete):
            return best
        bound = lower
        limit = min(below, best.step_time_s)
        orders: list[tuple[int, ...]] = []
        every: tuple[tuple[int, ...], ...] = ()
        if not self.lattice.is_chain and timed:
            every = (self.lattice.orders(MOST_ORDERS) if complete else None) or ()
            orders += self._cut_into_stages(cell)
        elif not self.lattice.is_chain:
            problem = self._ideals.problem(cell)
            found = partition(problem, below=limit)
            if complete:
                bound = found.step_time_s if found is not None else limit
            if found is not None and found.step_time_s < limit * (1 - _BETTER):
                orders.append(_order(problem, found))
        proved = [best.bound_s]
        for order in dict.fromkeys((*orders, *every)):
            solved = self._solver(order).refine(cell, min(limit, best.step_time_s), lower)
            proved.append(solved.bound_s)
            made = self._as_run(solved)
            if made is not None and made.step_time_s < best.step_time_s * (1 - _BETTER):
                best = made
        if every:  # the bounds of all orders
            bound = max(bound, min(proved))
        return replace(best, bound_s=min(bound, best.step_time_s))

    def _cut_into_stages(self, cell: Cell) -> list[tuple[int, ...]]:
        """The block order of the dynamic program's plan for this number of stages; empty unless it
        is faster than its plan in the traced order. Cached for cells that differ only in ZeRO stage
        or schedule, because it takes seconds."""
        degrees = cell.degrees
        key = (degrees.num_stages, degrees.tp, cell.micro_batch)
        if key not in self._cut:
            traced = partition(self.costs.problem(cell))
            problem = self._ideals.problem(cell)
            found = partition(problem, below=np.inf if traced is None else traced.step_time_s)
            self._cut[key] = [] if found is None else [_order(problem, found)]
        return self._cut[key]

    def _as_run(self, found: Refinement) -> Refinement | None:
        """The plan with the blocks of each stage in the order in which the model runs them."""
        if found.plan is None:
            return None
        plan = in_traced_stages(found.plan, self._entries)
        if plan == found.plan:
            return found
        prediction = self.costs.predict(plan)
        if not prediction.fits:
            return None
        return replace(found, plan=plan, prediction=prediction)

    def _solver(self, order: tuple[int, ...]) -> CellSolver:
        if order not in self._solvers:
            costs = self.costs
            traced = Ordered(costs.model.traced, tuple(self._entries[k] for k in order))
            model = replace(costs.model, traced=traced)
            self._solvers[order] = CellSolver(
                SimulatorCosts(model, price=costs.price, seed=costs.seed),
                solver=self.solver,
                seed=self.seed,
            )
        return self._solvers[order]


def _order(problem: PartitionProblem, cut: Partition) -> tuple[int, ...]:
    """The blocks in the order of the stages."""
    return tuple(block for stage in problem.stages(cut.starts) for block in stage)


def in_traced_stages(plan: Plan, entries: list[str]) -> Plan:
    """The plan with each stage's blocks in the order of `entries`, the traced one."""
    at = {entry: position for position, entry in enumerate(entries)}
    order: list[str] = []
    stages = []
    for stage in plan.stages:
        mine = list(range(stage.first_block, stage.last_block))
        mine.sort(key=lambda k: at[plan.block_entries[k]])
        order.extend(plan.block_entries[k] for k in mine)
        stages.append(
            Stage(
                first_block=stage.first_block,
                last_block=stage.last_block,
                recompute=tuple(stage.recompute[k - stage.first_block] for k in mine),
            )
        )
    return replace(plan, block_entries=tuple(order), stages=tuple(stages))


class Ordered:
    """A traced model with its blocks in the order of `entries`."""

    def __init__(self, traced: Traced, entries: tuple[str, ...]) -> None:
        self._traced, self._entries = traced, entries
        self.name = traced.name
        self.content_hash = traced.content_hash
        self.tp_degrees = traced.tp_degrees
        self.tensor_parallel = traced.tensor_parallel
        self.tied_parameters = traced.tied_parameters
        self.why_not_tensor_parallel = traced.why_not_tensor_parallel
        self._made: dict[tuple[int, int], ModelGraph] = {}

    def at(self, micro_batch: int, tp: int = 1) -> ModelGraph:
        """The graph for a micro-batch size and tp degree, in this order."""
        key = (micro_batch, tp)
        if key not in self._made:
            self._made[key] = in_order(self._traced.at(micro_batch, tp), self._entries)
        return self._made[key]
