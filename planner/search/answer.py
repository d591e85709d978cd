"""From a setting (legal plans and their prices) to a plan file with its proof.

1. every legal cell is priced at once by its lower bound; cells that surely lack memory fall;
2. cells are refined in the order of their bounds, exactly inside, by the event timeline at last;
3. it ends when no bound is left under the best plan: status `optimal` where best and bound meet
   within tolerances.OPTIMAL_GAP, else `feasible` with the gap;
4. nothing fits: status `infeasible`, with the nearest plan and changes under which one exists.

Equal inputs give equal answers, apart from `search_time_s` and where a time limit cuts in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from planner.axes import Axes
from planner.branching.branch_solver import BranchSolver, cell_solver
from planner.cell import Cell
from planner.cells.branch_and_bound import Outcome, Progress, Refinement, branch_and_bound, family
from planner.cells.cell_costs import CellCosts, CellSolver
from planner.costs.bound import lower_bounds
from planner.search.explain import explain_infeasible, nearest_misses, why_not_first
from planner.search.relax import Candidate
from planner.search.space import legal_cells
from planner.space import MAX_FREE_VPP, Ground
from planner.tolerances import status_of
from profiles.errors import InputError
from simulator.values.plan_file import Alternative, PlanFile, Relaxation

CERTIFICATE_EFFORT = 1.0  # deterministic seconds that `auto` lets the integer programme have
RUNNERS_UP = 3
TRIED_RUNNERS_UP = 9  # cells solved at most to find them


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where a search takes place: the legal plans and what they cost."""

    ground: Ground
    costs: CellCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How to search; none of it changes what is optimal."""

    solver: str = "auto"
    seed: int = 0
    time_limit_s: float | None = None
    progress: Progress | None = None
    clock: Callable[[], float] = time.monotonic


def search_setting(
    setting: Setting,
    space: Axes,
    *,
    options: SearchOptions,
    candidates: Iterable[Candidate] = (),
    change: Callable[[Candidate], Setting | None] = lambda candidate: None,
) -> PlanFile:
    """The plan file of a setting.

    candidates, change   what to try where nothing fits, and the setting that each leads to
                         (None where the model or the cluster forbids it)

    Raises InputError where the space holds no legal cell.
    """
    start = options.clock()
    cells = legal_cells(space, setting.ground)
    solver = cell_solver(setting.costs, solver=options.solver, seed=options.seed)
    missing, bounds = _price(setting.costs, cells)
    outcome = _run(solver, cells, bounds, options, RUNNERS_UP, first_only=False)
    if not outcome.plans and outcome.complete:
        solved = _solve_candidates(candidates, change, options)
        why = explain_infeasible(solver, nearest_misses(cells, missing), tuple(solved))
        return PlanFile(
            status="infeasible",
            search_time_s=options.clock() - start,
            cells_considered=len(cells),
            cells_pruned=outcome.pruned,
            cells_refined=outcome.refined,
            solver=_used(options.solver),
            infeasibility=why,
            assumptions=_assumptions(space, setting.ground),
        )
    if not outcome.plans:
        raise InputError(
            f"the search was ended after {options.clock() - start:.1f} s without a plan; "
            f"{outcome.refined} of {len(cells)} cells were solved. Give it more --time-limit"
        )
    return _answer(setting, space, cells, outcome, solver, options, start)


def _price(costs: CellCosts, cells: tuple[Cell, ...]) -> tuple[list[float], np.ndarray]:
    """Missing bytes and lower bound of every cell; the bound is infinite where memory lacks."""
    missing = [costs.missing_bytes(cell) for cell in cells]
    able = [index for index, lack in enumerate(missing) if lack <= 0]
    bounds = np.full(len(cells), np.inf)
    bounds[able] = lower_bounds(
        [cells[index] for index in able], [costs.totals(cells[index]) for index in able]
    )
    return missing, bounds


def _run(
    solver: CellSolver | BranchSolver,
    cells: tuple[Cell, ...],
    bounds: np.ndarray,
    options: SearchOptions,
    runners_up: int,
    *,
    first_only: bool,
) -> Outcome:
    lower = dict(zip(cells, bounds.tolist(), strict=True))

    def refine(cell: Cell, below: float) -> Refinement:
        return solver.refine(cell, below, lower[cell])

    return branch_and_bound(
        cells,
        bounds,
        refine,
        runners_up=runners_up,
        extra_refinements=TRIED_RUNNERS_UP,
        first_only=first_only,
        clock=options.clock,
        time_limit_s=options.time_limit_s,
        progress=options.progress,
    )


def _answer(
    setting: Setting,
    space: Axes,
    cells: tuple[Cell, ...],
    outcome: Outcome,
    solver: CellSolver | BranchSolver,
    options: SearchOptions,
    start: float,
) -> PlanFile:
    best = outcome.plans[0]
    plan, prediction = best.plan, best.prediction
    assert plan is not None  # Outcome.plans holds refinements with a plan
    assert prediction is not None
    used = _used(options.solver)
    if options.solver == "auto" and solver.certified(best.cell, CERTIFICATE_EFFORT):
        used = "dp+ilp"
    step = prediction.step_time_s
    gap = max(0.0, (step.value - outcome.bound_s) / step.value)
    cost, per_sample = prediction.usd_per_million_tokens, prediction.usd_per_million_samples
    return PlanFile(
        status=status_of(gap),
        bound=outcome.bound_s,
        gap=gap,
        step_time_s=step.value,
        step_time_low_s=step.low,
        step_time_high_s=step.high,
        mfu=prediction.mfu.value,
        peak_memory_bytes=prediction.peak_memory_bytes.value,
        usd_per_million_tokens=cost.value if cost else None,
        usd_per_million_samples=per_sample.value if per_sample else None,
        search_time_s=options.clock() - start,
        cells_considered=len(cells),
        cells_pruned=outcome.pruned,
        cells_refined=outcome.refined,
        solver=used,
        plan=plan,
        prediction=prediction,
        alternatives=_alternatives(outcome),
        assumptions=_assumptions(space, setting.ground),
    )


def _alternatives(outcome: Outcome) -> tuple[Alternative, ...]:
    """The best plan of each of the next families: other meshes or schedules than the best."""
    first = outcome.plans[0].prediction
    assert first is not None
    seen = {family(outcome.plans[0].cell)}
    shown: list[Alternative] = []
    for other in outcome.plans[1:]:
        if family(other.cell) in seen or len(shown) == RUNNERS_UP:
            continue
        seen.add(family(other.cell))
        plan, prediction = other.plan, other.prediction
        assert plan is not None
        assert prediction is not None
        step, cost = prediction.step_time_s, prediction.usd_per_million_tokens
        per_sample = prediction.usd_per_million_samples
        shown.append(
            Alternative(
                plan=plan,
                step_time_s=step.value,
                step_time_low_s=step.low,
                step_time_high_s=step.high,
                mfu=prediction.mfu.value,
                peak_memory_bytes=prediction.peak_memory_bytes.value,
                usd_per_million_tokens=cost.value if cost else None,
                usd_per_million_samples=per_sample.value if per_sample else None,
                why_not_first=why_not_first(plan, prediction, first),
            )
        )
    return tuple(shown)


def _solve_candidates(
    candidates: Iterable[Candidate],
    change: Callable[[Candidate], Setting | None],
    options: SearchOptions,
) -> list[Relaxation]:
    """Of every kind of change the first under which a plan is found."""
    solved: dict[str, Relaxation] = {}
    for candidate in candidates:
        if candidate.kind in solved:
            continue
        setting = change(candidate)
        if setting is None:
            continue
        try:
            cells = legal_cells(candidate.space, setting.ground)
        except InputError:
            continue
        solver = cell_solver(setting.costs, solver="dp", seed=options.seed)
        _, bounds = _price(setting.costs, cells)
        quiet = SearchOptions(seed=options.seed, clock=options.clock)
        outcome = _run(solver, cells, bounds, quiet, 0, first_only=True)
        if outcome.plans:
            best = outcome.plans[0]
            assert best.plan is not None
            solved[candidate.kind] = candidate.relaxation(best.plan, best.step_time_s)
    return list(solved.values())


def _used(solver: str) -> str:
    return "ilp" if solver == "ilp" else "dp"


def _assumptions(space: Axes, ground: Ground) -> tuple[str, ...]:
    said = [f"all {ground.num_devices} devices are used (--on)"]
    if space.tp is None and any(tp > ground.node_devices for tp in ground.tp_degrees):
        said.append(f"tensor parallelism stays within {ground.node_devices} devices (--tp)")
    if ground.num_devices > 1 and space.tp is None and ground.why_not_tensor_parallel:
        said.append(f"no tensor parallelism: {ground.why_not_tensor_parallel} (--tp)")
    if ground.num_devices > 1 and space.pp is None and ground.why_not_cuttable:
        said.append(f"no pipeline: {ground.why_not_cuttable} (--pp)")
    if ground.num_devices > 1 and ground.why_one_replica:
        said.append(f"dp is 1: {ground.why_one_replica}")
    said += ground.assumptions
    if space.allows("schedule", "interleaved") and ground.num_devices > 1:
        most = f" and are up to {MAX_FREE_VPP} per rank" if space.vpp is None else ""
        said.append(f"interleaved stages have equal numbers of blocks, or one more{most} (--vpp)")
    return tuple(said)
