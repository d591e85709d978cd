"""`solve_fleet`: the nodes and times of each run, by OR-tools CP-SAT, with a bound for each goal.

Every choice of a phase is an optional interval, of which exactly one is present; a cumulative
constraint limits the nodes of each pool. The levels are solved in order, starting from the schedule
found so far, with the values of earlier levels as limits.

A redundant linear constraint makes the bound on the end strong: a pool of C nodes that opens at
step a does at most C (b - a) node-steps until step b, the last end.

Dollars are rounded down to whole units, so that a bound on the units is a bound on the dollars.
Equal problems give equal schedules unless a time limit is reached: fixed seed, fixed workers,
interleaved search.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from planner.tolerances import OPTIMAL_GAP, status_of
from shardwright_fleet.problem import (
    COST,
    END,
    LATENESS,
    FleetProblem,
    Job,
    Placed,
    Schedule,
    values_of,
)

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_MOST_UNITS = 2.0**40  # of dollars: CP-SAT adds in 64 bits
WORKERS = 8
"""Number of CP-SAT's interleaved searches; from eight on, it runs one of each kind."""
_ORDER = "order"
# Share of the remaining time that a level may take.
_SHARES = {LATENESS: 0.4, COST: 0.4, END: 0.4, _ORDER: 0.7}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Value of a level, and its lower bound over all schedules as good in the earlier levels, in
    steps or US dollars."""

    level: str
    value: float
    bound: float

    @property
    def gap(self) -> float:
        """The largest possible excess over the optimum, as a share of the value."""
        return max(0.0, (self.value - self.bound) / self.value) if self.value > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The best schedule found.

    status    `optimal`, `feasible`, `infeasible` (no schedule keeps the hard deadlines and windows)
              or `unknown` (the time limit ended the search before a schedule was found)
    proofs    one per level, in order
    schedule  None without one
    """

    status: str
    proofs: tuple[Proof, ...] = ()
    schedule: Schedule | None = None

    @property
    def gap(self) -> float | None:
        """The largest gap of the levels."""
        return max((proof.gap for proof in self.proofs), default=0.0) if self.schedule else None


def solve_fleet(
    problem: FleetProblem,
    *,
    clock: Callable[[], float] = lambda: 0.0,
    limit_s: float = math.inf,
    hint: Schedule | None = None,
    seed: int = 0,
    gap: float = OPTIMAL_GAP,
    order: bool = True,
) -> Solution:
    """The best schedule, or the proof that there is none.

    limit_s  seconds for all levels together, by `clock`
    hint     a schedule to start from
    gap      relative gap at which a level is good enough
    order    among equally good schedules, prefer early ends of jobs with high priority, if time is
             left; not proven
    """
    model = FleetModel(problem)
    end = clock() + limit_s
    bounds: dict[str, float] = {}
    found = hint
    for level in (*problem.levels, *((_ORDER,) if order else ())):
        target = model.target(level)
        left_s = max(0.05, (end - clock()) * _SHARES[level])
        least = model.least(target, left_s, seed, gap, hint=found)
        if least.status == "infeasible":
            return Solution(status=least.status)
        found = least.schedule or found
        if found is None:
            return Solution(status="unknown")
        bounds[level] = least.bound * (model.usd_unit if level == COST else 1.0)
        if least.schedule is not None and not isinstance(target, int):
            # Later schedules must not be worse at this level.
            model.model.add(target <= least.value)
    assert found is not None
    values = values_of(problem, found)
    proofs = tuple(
        Proof(
            level=level,
            value=values.at(level),
            bound=min(values.at(level), max(0.0, bounds[level])),
        )
        for level in problem.levels
    )
    solution = Solution(status="feasible", proofs=proofs, schedule=found)
    return replace(solution, status=status_of(solution.gap or 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Least:
    """The outcome of one run of CP-SAT: status, least value found and its bound in the target's
    units, the schedule, and the added nodes per pool."""

    status: str
    value: int = 0
    bound: float = 0.0
    schedule: Schedule | None = None
    added: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variables:
    """Variables of a job: start, end and chosen choice of each phase, and the job's lateness."""

    starts: list[cp_model.IntVar]
    ends: list[cp_model.IntVar]
    taken: list[list[cp_model.IntVar]]
    late: Any


class FleetModel:
    """The problem as a model of CP-SAT, with relaxations for relax.py.

    extend   hard deadlines may be missed, which counts as lateness
    enlarge  pools may have additional nodes (`added`), at most twice as many in all
    """

    def __init__(
        self, problem: FleetProblem, *, extend: bool = False, enlarge: bool = False
    ) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.model = problem, cp_model.CpModel()
        dearest = sum(
            max(each.usd for each in phase) for job in problem.jobs for phase in job.phases
        )
        dearest += sum(job.usd_per_step for job in problem.jobs) * problem.horizon
        # US dollars per unit: a cent, or more if there are many dollars.
        self.usd_unit = max(0.01, dearest / _MOST_UNITS)
        self.added: list[Any] = [
            self.model.new_int_var(0, pool.nodes, "") if enlarge else 0 for pool in problem.pools
        ]
        # For every pool: its intervals, their nodes, and their node-steps if they are present.
        self._intervals: list[list[tuple[Any, int, Any]]] = [[] for _ in problem.pools]
        self.jobs = [self._variables(job, extend) for job in problem.jobs]
        for job, own in zip(problem.jobs, self.jobs, strict=True):
            for other in job.after:
                self.model.add(own.starts[0] >= self.jobs[other].ends[-1])
        self.end = self.model.new_int_var(0, problem.horizon, "end")
        for own in self.jobs:
            self.model.add(self.end >= own.ends[-1])
        for pool, added, found in zip(problem.pools, self.added, self._intervals, strict=True):
            spans, nodes = [each for each, *_ in found], [count for _, count, _ in found]
            self.model.add_cumulative(spans, nodes, pool.nodes + added)
            if not enlarge:
                work = sum(steps for *_, steps in found)
                self.model.add(work <= pool.nodes * (self.end - pool.opens))

    def _variables(self, job: Job, extend: bool) -> _Variables:
        """Variables and constraints of a job: order of phases, intervals, fixed pools, deadline."""
        model, horizon = self.model, self.problem.horizon
        own = _Variables(starts=[], ends=[], taken=[], late=0)
        for phase in job.phases:
            start = model.new_int_var(job.release, horizon, "")
            end = model.new_int_var(job.release, horizon, "")
            taken = [model.new_bool_var("") for _ in phase]
            for choice, present in zip(phase, taken, strict=True):
                pool = self.problem.pools[choice.pool]
                interval = model.new_optional_interval_var(start, choice.steps, end, present, "")
                work = choice.nodes * choice.steps * present
                self._intervals[choice.pool].append((interval, choice.nodes, work))
                if pool.opens:
                    model.add(start >= pool.opens).only_enforce_if(present)
                if pool.closes is not None:
                    model.add(end <= pool.closes).only_enforce_if(present)
            model.add_exactly_one(taken)
            steps = sum(choice.steps * one for choice, one in zip(phase, taken, strict=True))
            model.add(end == start + steps)
            if own.ends:
                model.add(start >= own.ends[-1])
            own.starts.append(start)
            own.ends.append(end)
            own.taken.append(taken)
        for pool_number in range(0 if job.may_move else len(self.problem.pools)):
            first, *rest = [
                sum(
                    one
                    for choice, one in zip(phase, taken, strict=True)
                    if choice.pool == pool_number
                )
                for phase, taken in zip(job.phases, own.taken, strict=True)
            ]
            for other in rest:
                model.add(other == first)
        if job.deadline is None:
            return own
        if job.hard and not extend:
            model.add(own.ends[-1] <= job.deadline)
            return own
        late = model.new_int_var(0, horizon, "")
        model.add(late >= own.ends[-1] - job.deadline)
        return replace(own, late=late)

    def target(self, level: str) -> Any:
        """The value of a level, in whole units."""
        pairs = list(zip(self.problem.jobs, self.jobs, strict=True))
        if level == LATENESS:
            return sum(job.priority * own.late for job, own in pairs if not job.usd_per_step)
        if level == END:
            return self.end
        if level == _ORDER:
            return sum(job.priority * own.ends[-1] for job, own in pairs)
        return sum(
            math.floor(job.usd_per_step / self.usd_unit) * own.late
            + sum(
                math.floor(choice.usd / self.usd_unit) * present
                for phase, taken in zip(job.phases, own.taken, strict=True)
                for choice, present in zip(phase, taken, strict=True)
            )
            for job, own in pairs
        )

    def least(
        self, target: Any, limit_s: float, seed: int, gap: float, *, hint: Schedule | None = None
    ) -> Least:
        """Minimize the solver's expression `target`; the search starts from the schedule `hint`."""
        from ortools.sat.python import cp_model

        self.model.minimize(target)
        self.model.clear_hints()  # type: ignore[no-untyped-call]  # ortools says no type
        for job, own, placed in zip(
            self.problem.jobs, self.jobs, hint or (), strict=hint is not None
        ):
            for number, one in enumerate(placed):
                self.model.add_hint(own.starts[number], one.start)
                steps = job.phases[number][one.choice].steps
                self.model.add_hint(own.ends[number], one.start + steps)
                for index, present in enumerate(own.taken[number]):
                    self.model.add_hint(present, int(index == one.choice))
        solver = cp_model.CpSolver()
        solver.parameters.random_seed = seed
        solver.parameters.num_workers = WORKERS
        solver.parameters.interleave_search = True
        solver.parameters.relative_gap_limit = gap
        if math.isfinite(limit_s):
            solver.parameters.max_time_in_seconds = limit_s
        status = solver.status_name(solver.solve(self.model)).lower()
        if status == "model_invalid":  # numbers beyond 64 bits: nothing is proven
            status = "unknown"
        if status not in ("optimal", "feasible"):
            return Least(status=status)
        return Least(
            status=status,
            value=round(solver.objective_value),
            bound=solver.best_objective_bound,
            schedule=tuple(
                tuple(
                    Placed(
                        choice=next(i for i, one in enumerate(taken) if solver.value(one)),
                        start=int(solver.value(start)),
                    )
                    for taken, start in zip(own.taken, own.starts, strict=True)
                )
                for own in self.jobs
            ),
            added=tuple(int(solver.value(each)) for each in self.added),
        )
