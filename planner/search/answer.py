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
from dataclasses import dataclass, replace

import numpy as np

from planner.axes import Axes
from planner.cell import Cell
from planner.cells.branch_and_bound import Outcome, Progress, Refinement, branch_and_bound, family
from planner.cells.branch_solver import cell_solver
from planner.cells.cell_solver import CellSolver
from planner.costs.bound import lower_bound
from planner.costs.costs import SimulatorCosts
from planner.search.explain import explain_infeasible, why_not_first
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
    costs: SimulatorCosts


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
    solved = _solve(setting, space, options)
    outcome = solved.outcome
    answer = PlanFile(
        status="infeasible",
        search_time_s=options.clock() - start,
        cells_considered=len(solved.missing),
        cells_pruned=outcome.pruned,
        cells_refined=outcome.refined,
        solver="ilp" if options.solver == "ilp" else "dp",
        assumptions=_assumptions(space, setting.ground),
    )
    if outcome.plans:
        answer = _with_plan(answer, solved, options)
    elif outcome.complete:
        changes = _solve_candidates(candidates, change, options)
        why = explain_infeasible(solved.solver, solved.missing, tuple(changes))
        answer = replace(answer, infeasibility=why)
    else:
        raise InputError(
            f"the search was ended after {answer.search_time_s:.1f} s without a plan; "
            f"{outcome.refined} of {len(solved.missing)} cells were solved. Give it more "
            "--time-limit"
        )
    return replace(answer, search_time_s=options.clock() - start)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solved:
    """The cells of a setting with the bytes that each surely lacks, and what was found."""

    missing: dict[Cell, float]
    solver: CellSolver
    outcome: Outcome


def _solve(
    setting: Setting, space: Axes, options: SearchOptions, *, first_only: bool = False
) -> _Solved:
    """The best plans of a setting; `first_only`: the first that is found, and no runners-up."""
    costs, cells = setting.costs, legal_cells(space, setting.ground)
    solver = cell_solver(costs, solver=options.solver, seed=options.seed)
    missing = {cell: costs.missing_bytes(cell) for cell in cells}
    lower = {
        cell: lower_bound(cell, costs.totals(cell)) if missing[cell] <= 0 else np.inf
        for cell in cells
    }

    def refine(cell: Cell, below: float) -> Refinement:
        return solver.refine(cell, below, lower[cell])

    outcome = branch_and_bound(
        cells,
        np.asarray(list(lower.values())),
        refine,
        runners_up=0 if first_only else RUNNERS_UP,
        extra_refinements=TRIED_RUNNERS_UP,
        first_only=first_only,
        clock=options.clock,
        time_limit_s=options.time_limit_s,
        progress=options.progress,
    )
    return _Solved(missing=missing, solver=solver, outcome=outcome)


def _with_plan(answer: PlanFile, solved: _Solved, options: SearchOptions) -> PlanFile:
    """The answer with the best plan, its proof and its runners-up."""
    best, bound_s = solved.outcome.plans[0], solved.outcome.bound_s
    plan, prediction = best.plan, best.prediction
    assert plan is not None  # Outcome.plans holds refinements with a plan
    assert prediction is not None
    step = prediction.step_time_s
    gap = max(0.0, (step.value - bound_s) / step.value)
    cost, per_sample = prediction.usd_per_million_tokens, prediction.usd_per_million_samples
    certified = options.solver == "auto" and solved.solver.certified(best.cell, CERTIFICATE_EFFORT)
    return replace(
        answer,
        status=status_of(gap),
        bound=bound_s,
        gap=gap,
        step_time_s=step.value,
        step_time_low_s=step.low,
        step_time_high_s=step.high,
        mfu=prediction.mfu.value,
        peak_memory_bytes=prediction.peak.value,
        usd_per_million_tokens=cost.value if cost else None,
        usd_per_million_samples=per_sample.value if per_sample else None,
        solver="dp+ilp" if certified else answer.solver,
        plan=plan,
        prediction=prediction,
        alternatives=_alternatives(solved.outcome),
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
                peak_memory_bytes=prediction.peak.value,
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
    found: dict[str, Relaxation] = {}
    quiet = SearchOptions(solver="dp", seed=options.seed, clock=options.clock)
    for candidate in candidates:
        setting = None if candidate.kind in found else change(candidate)
        if setting is None:
            continue
        for best in _solve(setting, candidate.space, quiet, first_only=True).outcome.plans:
            assert best.plan is not None
            found[candidate.kind] = candidate.relaxation(best.plan, best.step_time_s)
    return list(found.values())


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
