"""Search a setting (legal cells and their costs), and return a plan file with its proof.

1. Every legal cell gets a lower bound on its step time; cells whose memory bound exceeds the memory
are discarded.
2. Cells are solved exactly, in the order of their bounds, and checked by the event timeline.
3. The search ends when no bound is below the best plan. The status is `optimal` if best and bound
agree within tolerances.OPTIMAL_GAP, otherwise `feasible` with the gap.
4. If nothing fits, the status is `infeasible`, with the nearest plan, and changes that make one
fit.

Equal inputs give equal answers, except for `search_time_s` and when a time limit ends the search.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from planner.axes import NO_PIPELINE, Axes
from planner.best_first import BestFirst, Candidate, Progress
from planner.blocks.explain import Changed, explain_infeasible, relaxation, why_not_first
from planner.broken_pins import why_none
from planner.cell import Cell
from planner.costs.bound import lower_bound
from planner.costs.costs import SimulatorCosts
from planner.mesh.branch_solver import cell_solver
from planner.mesh.cell_solver import CellSolver, Refinement
from planner.neighbors import answered
from planner.run_option import RunOption
from planner.space import EXECUTOR, MAX_FREE_VPP, LayoutContext, choices_of, meshes_of
from planner.tolerances import status_of
from profiles.errors import InputError
from profiles.extras import need_package
from profiles.hardware.catalogue.cluster import Cluster
from simulator.training_run.framework.framework import FrameworkRules, load_framework
from simulator.values.degrees import Degrees
from simulator.values.plan import Plan
from simulator.values.plan_file import Alternative, PlanFile, Relaxation
from simulator.values.runnable import free_schedules, why_not_runnable

RUNNERS_UP = 3
TRIED_RUNNERS_UP = 9  # cells solved for runners-up, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The input of a search: the legal cells and their costs."""

    context: LayoutContext
    costs: SimulatorCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Options of a search.

    solver        `dp` or `auto`: the dynamic program; `ilp`: the integer program
    progress      called with bound, incumbent, gap and seconds after every cell
    time_limit_s  ends the search with the best plan so far; so does an interrupt
    clock         returns seconds; only for the limit, for progress and for `search_time_s`
    layouts       answer of the search over layouts to the same request. Plans that are layouts have
                  that search's price, so they are skipped here (`is_layout`), and only faster plans
                  are searched
    """

    solver: str = "auto"
    seed: int = 0
    time_limit_s: float | None = None
    progress: Progress | None = None
    clock: Callable[[], float] = time.monotonic
    layouts: PlanFile | None = None
    is_layout: Callable[[Plan], bool] = lambda plan: False


def search_setting(
    setting: Setting,
    space: Axes,
    *,
    options: SearchOptions,
    candidates: Iterable[Changed] = (),
    change: Callable[[Axes, Cluster], Setting | None] = lambda space, cluster: None,
) -> PlanFile:
    """The plan file of a setting.

    candidates, change  changes to try if nothing fits, and the setting of each (None if the model
                        or the cluster forbids it)

    Raises InputError if the space contains no legal cell.
    """
    if options.solver == "ilp":
        need_package("ortools", "--solver ilp")
    start = options.clock()
    solved = _solve(setting, space, options)
    search, cells = solved.search, len(solved.missing)
    answer = PlanFile(
        status="infeasible",
        search_time_s=options.clock() - start,
        cells_considered=cells,
        cells_pruned=cells - search.refined,
        cells_refined=search.refined,
        solver="ilp" if options.solver == "ilp" else "dp",
        assumptions=_assumptions(space, setting.context),
    )
    if search.found:
        answer = _with_plan(answer, solved, options)
    elif options.layouts is not None and (search.complete or options.layouts.plan is not None):
        answer = _with_layouts(options.layouts, answer, search.bound)
    elif search.complete:
        why = explain_infeasible(
            solved.solver, solved.missing, _relaxations(candidates, change, options)
        )
        answer = replace(answer, infeasibility=why)
    else:
        raise InputError(
            f"the search ended after {answer.search_time_s:.1f} s, before it found a plan; "
            f"{search.refined} of {cells} cells were solved. Raise --time-limit"
        )
    return replace(answer, search_time_s=options.clock() - start)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solved:
    """The cells of a setting with lower bounds on their missing bytes, and the plans found: one per
    family, best first, including the runners-up searched after the proof."""

    missing: dict[Cell, float]
    solver: CellSolver
    search: BestFirst[Refinement]
    best: tuple[Refinement, ...]


def _solve(
    setting: Setting, space: Axes, options: SearchOptions, *, first_only: bool = False
) -> _Solved:
    """The best plans of a setting; with `first_only` the first plan, without runners-up."""
    costs, cells = setting.costs, legal_cells(space, setting.context)
    solver = cell_solver(costs, solver=options.solver, seed=options.seed)
    missing = {cell: costs.missing_bytes(cell) for cell in cells}
    lower = [
        lower_bound(cell, costs.totals(cell)) if missing[cell] <= 0 else np.inf for cell in cells
    ]
    search: BestFirst[Refinement] = BestFirst(
        clock=options.clock,
        time_limit_s=options.time_limit_s,
        progress=options.progress,
        first_only=first_only,
        best=_step_s(options.layouts),
    )
    again: list[Candidate[int]] = []  # no plan below the best was found; slower ones may exist

    def refine(at: int, below: float) -> float:
        """Add the plans of a cell; returns a lower bound on the cell's other plans."""
        found = solver.refine(cells[at], below, lower[at])
        bound_s = max(found.bound_s, lower[at])
        known = found.plan is not None and options.is_layout(found.plan)
        if found.prediction is not None and not known:
            memory = found.prediction.peak.value
            search.offer(family(cells[at]), (found.step_time_s, memory, cells[at]), found)
        elif np.isfinite(bound_s):
            again.append((bound_s, at, at))
        return bound_s

    bounds, bounded = [solver.bounds(cell) for cell in cells], set[int]()

    def open_one(at: int) -> list[Candidate[int]]:
        """Put a cell back with a higher bound, or refine it if there is none."""
        bounded.add(at)
        for bound_s in bounds[at]:
            if bound_s > lower[at]:
                lower[at] = bound_s
                return [(bound_s, at, at)]
        search.count_refined(refine(at, search.best))
        return []

    def in_order(candidates: list[Candidate[int]]) -> Iterator[Candidate[int]]:
        """Candidates in the order of their bounds, each with the first of its `bounds` computed."""
        heapq.heapify(candidates)
        while candidates:
            bound_s, number, at = heapq.heappop(candidates)
            if at in bounded:
                yield bound_s, number, at
                continue
            bounded.add(at)
            lower[at] = max(lower[at], next(bounds[at], 0.0))
            heapq.heappush(candidates, (max(bound_s, lower[at]), number, at))

    order = sorted((lower[at], at, at) for at in range(len(cells)))
    with search.until_the_end():
        left = search.explore(order, open_one)
    if search.complete and search.found:
        settled, tried = set(search.found), Counter[Family]()

        def look(at: int) -> None:
            tried[family(cells[at])] += 1
            refine(at, search.shown(RUNNERS_UP))

        search.open_runners_up(
            in_order([*left, *again]),
            look,
            runners_up=RUNNERS_UP,
            most=TRIED_RUNNERS_UP,
            worth=lambda at: (
                family(cells[at]) not in settled and tried[family(cells[at])] * 3 < TRIED_RUNNERS_UP
            ),
        )
    return _Solved(
        missing=missing,
        solver=solver,
        search=search,
        best=tuple(found for _, found in search.ranked()[: RUNNERS_UP + 1]),
    )


Family = tuple[str, str]


def family(cell: Cell) -> Family:
    """The mesh and the schedule; runners-up differ from the best in these."""
    return (cell.degrees.mesh_text, cell.schedule)


def _with_plan(answer: PlanFile, solved: _Solved, options: SearchOptions) -> PlanFile:
    """The answer with the best plan, its proof and its runners-up."""
    best, layouts = solved.best[0], options.layouts
    assert best.prediction is not None  # offered answers have a plan
    bound_s = min(solved.search.bound, _bound_s(layouts))
    others = [(other.plan, other.prediction) for other in solved.best[1:]]
    if layouts is not None:
        others.append((layouts.plan, layouts.prediction))
    alternatives = [
        Alternative.of(plan, prediction, why_not_first(plan, prediction, best.prediction))
        for plan, prediction in others
        if plan is not None and prediction is not None
    ]
    gap = max(0.0, (best.step_time_s - bound_s) / best.step_time_s)
    return replace(
        answer,
        status=status_of(gap),
        bound=bound_s,
        gap=gap,
        plan=best.plan,
        alternatives=tuple(sorted(alternatives, key=lambda one: one.step_time_s)[:RUNNERS_UP]),
    ).with_prediction(best.prediction)


def _step_s(answer: PlanFile | None) -> float:
    """Seconds of the step; infinite without a plan."""
    found = None if answer is None else answer.step_time_s
    return math.inf if found is None else found


def _bound_s(layouts: PlanFile | None) -> float:
    """Lower bound on the step of all layouts in seconds: infinite if layouts were not searched or
    provably do not fit, 0 if nothing is proven."""
    if layouts is None or layouts.plan is None:
        return math.inf
    return layouts.bound or 0.0


def _with_layouts(layouts: PlanFile, answer: PlanFile, bound_s: float) -> PlanFile:
    """The answer of the search over layouts, if no other plan is faster than its best."""
    found = replace(
        layouts,
        cells_considered=layouts.cells_considered + answer.cells_considered,
        cells_pruned=layouts.cells_pruned + answer.cells_pruned,
        cells_refined=layouts.cells_refined + answer.cells_refined,
    )
    if layouts.plan is None:
        return found
    bound_s, step_s = min(bound_s, _bound_s(layouts)), _step_s(layouts)
    gap = (step_s - bound_s) / step_s
    return replace(found, status=status_of(gap), bound=bound_s, gap=gap)


def _relaxations(
    candidates: Iterable[Changed],
    change: Callable[[Axes, Cluster], Setting | None],
    options: SearchOptions,
) -> tuple[Relaxation, ...]:
    """The first change of each kind under which a plan fits."""
    quiet = SearchOptions(solver="dp", seed=options.seed, clock=options.clock)

    def solve(changed: tuple[Axes, Cluster]) -> Refinement | None:
        setting = change(*changed)
        if setting is None:
            return None
        return next(iter(_solve(setting, changed[0], quiet, first_only=True).best), None)

    return tuple(
        relaxation(changed, found.plan, found.step_time_s)
        for changed, found in answered(candidates, solve)
        if found.plan is not None
    )


def _assumptions(space: Axes, context: LayoutContext) -> tuple[str, ...]:
    said = [f"all {context.num_devices} devices are used (--on)"]
    if space.tp is None and any(tp > context.node_devices for tp in context.tp_degrees):
        said.append(f"tensor parallelism stays within {context.node_devices} devices (--tp)")
    if context.num_devices > 1 and space.tp is None and context.why_not_tensor_parallel:
        said.append(f"no tensor parallelism: {context.why_not_tensor_parallel} (--tp)")
    if context.num_devices > 1 and space.pp is None and context.why_not_cuttable:
        said.append(f"no pipeline: {context.why_not_cuttable} (--pp)")
    if context.num_devices > 1 and context.why_one_replica:
        said.append(f"dp is 1: {context.why_one_replica}")
    said += context.assumptions
    if space.allows("schedule", "interleaved") and context.num_devices > 1:
        most = f" and are up to {MAX_FREE_VPP} per rank" if space.vpp is None else ""
        said.append(f"interleaved stages have equal numbers of blocks, or one more{most} (--vpp)")
    return tuple(said)


def block_rules() -> FrameworkRules:
    """The rules of our own executor. A search without a fixed schedule tries `free_schedules`."""
    schedules = tuple(name for name in free_schedules() if name != NO_PIPELINE)
    return replace(load_framework(EXECUTOR).rules, schedules=schedules)


def legal_cells(axes: Axes, context: LayoutContext) -> tuple[Cell, ...]:
    """Every legal cell in a fixed order; raises InputError if the fixed axes allow none."""
    hybrid = tuple(RunOption(dp_replicate=groups) for groups in axes.replicate_groups)
    context = replace(context, options=hybrid)
    meshes = meshes_of(axes, context)
    # Recomputation is chosen block by block.
    choices = replace(axes, recompute=("none",))
    cells = sorted(
        Cell(
            degrees=Degrees(
                pp=pp, dp=dp, tp=tp, vpp=vpp, dp_replicate=context.options[option].dp_replicate
            ),
            zero_stage=zero,
            micro_batch=size,
            schedule=schedule,
            global_batch=context.global_batch,
        )
        for index, (pp, dp, tp, size) in enumerate(
            np.stack([meshes.pp, meshes.dp, meshes.tp, meshes.micro_batch], axis=1).tolist()
        )
        for schedule, vpp, zero, _, option in choices_of(choices, context, meshes, index)
    )
    refused = why_not_runnable(
        Degrees(), zero_stage=0, schedule="none", precision=context.precision
    )
    if cells and refused:
        raise InputError(f"--precision {context.precision} cannot be run: {refused}")
    if not cells:
        raise InputError(why_none(axes, context))
    return tuple(cells)
