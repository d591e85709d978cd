"""Solving cells of a model with branches: the blocks' order is part of what is chosen.

1f1b, gpipe   the exact dynamic programme over ideals (planner/ideal_partition.py); what its closed
              form leaves open is closed by the timeline where blocks and orders are few
interleaved   every near-even filling (planner/near_even.py) where they can be counted
other         the chain's solvers on every order of the blocks where there are few; else on the
              traced one and on the one that the dynamic programme would cut into as many stages,
              with the cell's own bound, which holds for any order

Where no other order is predicted to be faster, the answer is that of the traced order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from planner.block_lattice import BlockLattice, lattice_of
from planner.branch_and_bound import Refinement
from planner.branch_closing import MOST_ORDERS as MOST_TO_SOLVE
from planner.branch_closing import Order, orders_by_bound
from planner.cell import Cell
from planner.cell_costs import CellCosts, CellSolver
from planner.costs import SimulatorCosts
from planner.ideal_costs import IdealCosts
from planner.ideal_partition import partition_ideals
from planner.ideal_problem import IdealPartition, IdealProblem
from planner.near_even import (
    balanced_filling,
    near_even_fillings,
    path_bounds,
    timeline_seconds,
)
from planner.ordered import Ordered
from planner.problem import Array, Partition
from planner.stage_labels import Index
from simulator.plan import Plan, Stage

MOST_IDEALS = 700  # arrays of 700 x 700 are 4 MB each; two towers of 25 blocks have 676
MOST_ORDERS = 16  # an order costs as much as a chain
MOST_TO_CLOSE = 12  # blocks up to which the timeline closes what the closed form leaves open
MOST_FILLINGS = 20_000  # a bound of each takes a microsecond
MOST_TIMELINES = 300  # a timeline takes about a millisecond
MOST_PREDICTED = 20  # a plan that is priced and predicted takes some 20 ms
_BETTER = 1e-9  # relative; another order is taken only where it is faster
_ATTEMPTS = 4  # as planner/cell_costs.py


def cell_solver(
    costs: CellCosts, *, solver: str, seed: int, workers: int
) -> CellSolver | BranchSolver:
    """What solves the cells of these costs: the chain's solver unless the model's blocks have
    several orders."""
    chain = CellSolver(costs, solver=solver, seed=seed, workers=workers)
    if not isinstance(costs, SimulatorCosts):
        return chain
    graph = costs.traced.at(costs.micro_batches[0], 1)
    if not graph.branches or len(graph.chain) < 2:
        return chain
    return BranchSolver(chain, costs, lattice_of(graph, MOST_IDEALS))


@dataclass(frozen=True, slots=True)
class _Filled:
    """A cell's near-even fillings with the bounds of their paths and the tail of any rank."""

    problem: IdealProblem
    cuts: Index
    bounds: Array
    tail_s: float
    least_s: float


class BranchSolver:
    """As CellSolver, for blocks that have several orders.

    lattice  of the blocks; None where it is too large: then the traced order alone is solved, and
             only the cell's own bound is proved
    """

    def __init__(
        self, chain: CellSolver, costs: SimulatorCosts, lattice: BlockLattice | None
    ) -> None:
        self.chain, self.costs, self.lattice = chain, costs, lattice
        self._entries = [ref.entry for ref in costs.traced.at(costs.micro_batches[0], 1).chain]
        self._ideals = IdealCosts(costs, lattice) if lattice is not None else None
        self._every = lattice.orders(MOST_ORDERS) if lattice is not None else None
        self._solvers: dict[tuple[int, ...], CellSolver] = {}
        self._cuts: dict[int, Index | None] = {}
        self._bounded: dict[Cell, _Filled] = {}
        self._found: tuple[Cell, float, IdealPartition | None] | None = None

    def sharper_bound(self, cell: Cell) -> float:
        """As CellSolver's; 0 where not all orders are solved one by one."""
        if self._fillings(cell) is not None:
            return self._filled(cell).least_s
        if not self._by_orders(cell) or self._every is None:
            return self.chain.sharper_bound(cell) if cell.pp == 1 else 0.0
        return min(self._solver(order).sharper_bound(cell) for order in self._every)

    def exact_bound(self, cell: Cell, below: float, lower: float) -> float:
        """As CellSolver's."""
        if cell.pp == 1:
            return self.chain.exact_bound(cell, below, lower)
        if self._by_orders(cell):
            if self._fillings(cell) is not None:
                return max(lower, self._filled(cell).least_s)
            if self._every is None:
                return lower
            return min(self._solver(o).exact_bound(cell, below, lower) for o in self._every)
        if self._ideals is None:
            return lower
        found = self._best(cell, below)
        return found.step_time_s if found is not None else below

    def refine(self, cell: Cell, below: float, lower: float) -> Refinement:
        """The best plan of a cell that can be under `below` seconds; `lower` is its bound."""
        if cell.pp == 1:
            return self.chain.refine(cell, below, lower)
        traced = self.chain.refine(cell, below, lower)
        if self._fillings(cell) is not None:
            return self._refine_fillings(cell, traced, below, lower)
        if self._by_orders(cell):
            return self._refine_orders(cell, traced, below, lower)
        if self._ideals is None:
            return replace(traced, bound_s=lower)
        if self.lattice is not None and self.lattice.is_chain:
            return self._closed(cell, traced, below) if self._may_close(cell) else traced
        found = self._refine_ideals(cell, traced, below)
        return self._closed(cell, found, below) if self._may_close(cell) else found

    def close(self, known: Refinement, below: float, effort: float = 1.0) -> Refinement:
        """As CellSolver's; order by order, where the ways to fill the stages are few."""
        cell = known.cell
        if cell.pp == 1:
            return self.chain.close(known, below, effort)
        orders = self._orders_to_close(cell)
        if orders is None:
            return known
        best, bounds = known, [np.inf]
        for tried, (bound, order) in enumerate(orders):
            limit = min(below, best.step_time_s)
            if bound >= limit * (1 - _BETTER) or tried == MOST_TO_SOLVE:
                bounds.append(bound)
                break
            made = self._solver(order).close(Refinement(cell=cell, bound_s=0.0), limit, effort)
            bounds.append(made.bound_s)
            run = self._as_run(made)
            if run is not None and run.step_time_s < best.step_time_s * (1 - _BETTER):
                best = run
        return replace(best, bound_s=min(best.step_time_s, max(known.bound_s, min(bounds))))

    def _orders_to_close(self, cell: Cell) -> list[tuple[float, Order]] | None:
        if self._ideals is None:
            return None
        costs = self.costs  # with halves of F and B as planner/cell_costs.py takes them
        whole = cell if cell.splits_backward else replace(cell, schedule="gpipe", vpp=1)
        problem = replace(self._ideals.problem(cell), costs=costs.problem(whole).costs)
        weight_s = costs.split(cell).weight_s if cell.splits_backward else ()
        return orders_by_bound(problem, cell, weight_s, costs.totals(cell).any_tail_s)

    def with_more(self, cell: Cell) -> Callable[[float], Partition | None]:
        """As CellSolver's, in the traced order."""
        return self.chain.with_more(cell)

    def certified(self, cell: Cell, effort: float) -> bool:
        """False: the integer programme knows one order only."""
        return cell.pp == 1 and self.chain.certified(cell, effort)

    # One pass over nested ideals.

    def _best(self, cell: Cell, below: float) -> IdealPartition | None:
        if self._found is None or self._found[0] != cell or self._found[1] < below:
            assert self._ideals is not None  # asked by the caller
            found = partition_ideals(self._ideals.problem(cell), below=below)
            self._found = (cell, below, found)
        return self._found[2]

    def _refine_ideals(self, cell: Cell, traced: Refinement, below: float) -> Refinement:
        assert self._ideals is not None  # asked by the caller
        limit = min(below, traced.step_time_s)
        found = self._best(cell, limit)
        bound = found.step_time_s if found is not None else limit
        problem = None
        for _ in range(_ATTEMPTS):
            if found is None or found.step_time_s >= limit * (1 - _BETTER):
                break
            ordered = self._costs(found.order)
            strategies = tuple(s for stage in found.strategies for s in stage)
            plan = ordered.plan(
                cell,
                Partition(
                    starts=found.starts, strategies=strategies, step_time_s=found.step_time_s
                ),
            )
            prediction = ordered.predict(plan)
            if prediction.fits:
                made = Refinement(cell=cell, bound_s=bound, plan=plan, prediction=prediction)
                if made.step_time_s < traced.step_time_s * (1 - _BETTER):
                    return made
                break
            over = max(rank.peak_bytes - rank.capacity_bytes for rank in prediction.ranks)
            problem = (problem or self._ideals.problem(cell)).with_capacity(-over)
            found = partition_ideals(problem, below=limit)
        return replace(traced, bound_s=min(bound, traced.step_time_s))

    def _may_close(self, cell: Cell) -> bool:
        few = self._every is not None and len(self._entries) <= MOST_TO_CLOSE
        return few and cell.zero_stage < 2  # gathering is split into passes by an estimate

    def _closed(self, cell: Cell, found: Refinement, below: float) -> Refinement:
        """The same with what the timeline proves, which the closed form does not where stages
        differ much."""
        if found.bound_s >= min(below, found.step_time_s) * (1 - _BETTER):
            return found
        best, bounds = found, []
        for order in self._every or ():
            limit = min(below, best.step_time_s)
            made = self._solver(order).refine_by_timeline(cell, limit, found.bound_s)
            bounds.append(made.bound_s)
            run = self._as_run(made)
            if run is not None and run.step_time_s < best.step_time_s * (1 - _BETTER):
                best = run
        return replace(best, bound_s=min([best.step_time_s, *bounds]))

    # Every near-even filling.

    def _fillings(self, cell: Cell) -> Index | None:
        """Where interleaved stages may be cut; None where there are too many ways."""
        if cell.schedule != "interleaved" or self.lattice is None or cell.zero_stage > 1:
            return None
        stages = cell.num_stages
        if stages not in self._cuts:
            self._cuts[stages] = near_even_fillings(self.lattice, stages, MOST_FILLINGS)
        return self._cuts[stages]

    def _filled(self, cell: Cell) -> _Filled:
        if cell not in self._bounded:
            cuts = self._fillings(cell)
            assert cuts is not None  # asked by the caller
            assert self._ideals is not None  # as there are fillings
            problem = self._ideals.problem(cell)
            tail_s = self.costs.totals(cell).any_tail_s
            bounds = path_bounds(problem, cell, cuts) + tail_s
            least_s = float(bounds.min(initial=np.inf))
            self._bounded = {cell: _Filled(problem, cuts, bounds, tail_s, least_s)}
        return self._bounded[cell]

    def _refine_fillings(
        self, cell: Cell, traced: Refinement, below: float, lower: float
    ) -> Refinement:
        """The fillings one after the other in the order of their timelines, until none that is
        left can be better; what does not fit at its fastest keeps its time as its bound."""
        filled, best = self._filled(cell), traced
        if not len(filled.cuts):
            return Refinement(cell=cell, bound_s=np.inf)
        limit = min(below, traced.step_time_s)
        near = np.flatnonzero(filled.bounds < limit * (1 - _BETTER))
        near = near[np.argsort(filled.bounds[near], kind="stable")]
        bounds = [limit]
        if near.size > MOST_TIMELINES:
            bounds.append(float(filled.bounds[near[MOST_TIMELINES]]))
            near = near[:MOST_TIMELINES]
        seconds = timeline_seconds(filled.problem, cell, filled.cuts[near]) + filled.tail_s
        for tried, index in enumerate(np.argsort(seconds, kind="stable")):
            limit = min(below, best.step_time_s)
            if seconds[index] >= limit * (1 - _BETTER) or tried == MOST_PREDICTED:
                bounds.append(float(seconds[index]))
                break
            made = self._at_its_fastest(cell, filled.problem, filled.cuts[near[index]])
            assert made.prediction is not None  # made so
            if not made.prediction.fits:
                bounds.append(float(seconds[index]))
            elif made.step_time_s < best.step_time_s * (1 - _BETTER):
                best = made
        bound = max(lower, min([*bounds, best.step_time_s]))
        return replace(best, bound_s=min(bound, best.step_time_s))

    def _at_its_fastest(self, cell: Cell, problem: IdealProblem, cuts: Index) -> Refinement:
        assert self.lattice is not None  # as there are fillings
        stages = [self.lattice.blocks(int(i), int(j)) for i, j in pairwise(cuts)]
        strategies = tuple(
            int(problem.costs[slot.costs].backward_s[block].argmin())
            for slot, blocks in zip(problem.slots, stages, strict=True)
            for block in blocks
        )
        made = IdealPartition(stages=tuple(stages), strategies=(), step_time_s=0.0)
        ordered = self._costs(made.order)
        plan = ordered.plan(
            cell, Partition(starts=made.starts, strategies=strategies, step_time_s=0.0)
        )
        prediction = ordered.predict(plan)
        return Refinement(cell=cell, bound_s=0.0, plan=plan, prediction=prediction)

    # One order after the other.

    def _by_orders(self, cell: Cell) -> bool:
        return cell.pp > 1 and (cell.schedule == "interleaved" or cell.splits_backward)

    def _refine_orders(
        self, cell: Cell, traced: Refinement, below: float, lower: float
    ) -> Refinement:
        best, bounds = traced, [traced.bound_s]
        if self._every is not None:
            orders = self._every
        elif cell.schedule == "interleaved":
            made, orders = self._balanced(cell)
            if made is not None and made.step_time_s < best.step_time_s * (1 - _BETTER):
                best = made
        else:
            orders = self._likely(cell)
        for order in orders:
            if order == tuple(range(len(order))):
                continue
            limit = min(below, best.step_time_s * (1 - _BETTER))
            found = self._solver(order).refine(cell, limit, lower)
            bounds.append(found.bound_s)
            made = self._as_run(found)
            if made is not None and made.step_time_s < best.step_time_s * (1 - _BETTER):
                best = made
        bound = min(bounds) if self._every is not None else lower
        return replace(best, bound_s=min(bound, best.step_time_s))

    def _balanced(self, cell: Cell) -> tuple[Refinement | None, tuple[tuple[int, ...], ...]]:
        """The near-even filling whose slowest stage is fastest, if it fits, and its order."""
        if self._ideals is None or self.lattice is None:
            return None, ()
        problem = self._ideals.problem(cell)
        cuts = balanced_filling(problem)
        if cuts is None:
            return None, ()
        made = self._at_its_fastest(cell, problem, cuts)
        order = tuple(k for i, j in pairwise(cuts) for k in self.lattice.blocks(int(i), int(j)))
        fits = made.prediction is not None and made.prediction.fits
        return (made if fits else None), (order,)

    def _likely(self, cell: Cell) -> tuple[tuple[int, ...], ...]:
        """The order of the dynamic programme's stages, as many as the cell has."""
        if self._ideals is None:
            return ()
        found = partition_ideals(self._ideals.problem(cell))
        return (found.order,) if found is not None else ()

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

    def _costs(self, order: tuple[int, ...]) -> SimulatorCosts:
        costs = self.costs
        return SimulatorCosts(
            Ordered(costs.traced, tuple(self._entries[k] for k in order)),
            costs.cluster,
            costs.workload,
            stack=costs.stack,
            strategies=costs.strategies,
            micro_batches=costs.micro_batches,
            price=costs.price,
            seed=costs.seed,
            workers=costs.workers,
        )

    def _solver(self, order: tuple[int, ...]) -> CellSolver:
        if order not in self._solvers:
            self._solvers[order] = CellSolver(
                self._costs(order),
                solver=self.chain.solver,
                seed=self.chain.seed,
                workers=self.chain.workers,
            )
        return self._solvers[order]


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
