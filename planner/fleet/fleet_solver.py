"""`solve_fleet`: who gets which nodes and when, by OR-tools CP-SAT, with a bound for every level.

Of each phase every choice is an optional interval, one of which is there; on every pool the nodes
of the intervals add up to no more than it has (a cumulative constraint). The levels are solved one
after the other, each with the values of those before it as a limit, from the schedule found so far.

Two families of linear constraints, which follow from the others, make the bounds strong. A pool of
C nodes that opens at step a does at most C (b - a) node-steps until step b, so that

    node-steps of all phases on it                    <= C (end of all - a)
    those of jobs released from r on, due until D     <= C (D + sum of lateness - max(r, a))

since none of these jobs is over later than D and the largest lateness among them.

Dollars are rounded down to whole units, so that a bound of the units is a bound of the dollars.
Equal problems give equal schedules where no limit in seconds strikes: fixed seed, fixed workers,
interleaved search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from planner.fleet.fleet_problem import (
    COST,
    END,
    LATENESS,
    Choice,
    FleetProblem,
    Placed,
    Schedule,
    end_of,
    late_steps,
    values_of,
)
from planner.tolerances import OPTIMAL_GAP, status_of

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_MOST_UNITS = 2.0**40  # of dollars: CP-SAT adds in 64 bits
WORKERS = 8
"""Searches of CP-SAT that take turns: it has one of each of its kinds from eight on."""
_ORDER = "order"
# Share of what is left of the time that a level may take.
_SHARES = {LATENESS: 0.4, COST: 0.4, END: 0.4, _ORDER: 0.7}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Of a level the value found, and what none of the schedules with its values before falls
    below; steps or US dollars."""

    level: str
    value: float
    bound: float

    @property
    def gap(self) -> float:
        """By which share of its value it may be too large."""
        return max(0.0, (self.value - self.bound) / self.value) if self.value > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """What was found.

    status    `optimal`, `feasible`, `infeasible` (nothing keeps the hard deadlines and windows) or
              `unknown` (the limit struck before anything was found)
    proofs    of the levels in their order
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
    """The best schedule, or that there is none.

    limit_s  of all levels together, by `clock`
    hint     a schedule to begin with
    gap      with which a level is good enough
    order    of schedules that are equal in all levels one in which jobs of priority are over early,
             as far as time allows; not proven
    """
    model = FleetModel(problem)
    end = clock() + limit_s
    proofs: list[Proof] = []
    found = hint
    for level in (*problem.levels, *((_ORDER,) if order else ())):
        target = model.target(level)
        left = max(0.05, (end - clock()) * _SHARES[level])
        if found is not None:
            model.hint(found)
        status, bound, schedule = model.least(target, left, seed, gap)
        if status == "infeasible":
            return Solution(status=status)
        # What was found before keeps every level's limit.
        found = schedule or found
        if found is None:
            return Solution(status="unknown")
        if level != _ORDER:
            reached = values_of(problem, found).at(level)
            unit = model.usd_unit if level == COST else 1.0
            bound = min(reached, max(0.0, bound * unit))
            proofs.append(Proof(level=level, value=reached, bound=bound))
            model.keep(target, found, level)
    solution = Solution(status="feasible", proofs=tuple(proofs), schedule=found)
    return replace(solution, status=status_of(solution.gap or 0.0))


class FleetModel:
    """The problem as a model of CP-SAT; what `fleet_relax.py` loosens is asked for by name.

    extend   hard deadlines may be passed, which `extended` counts in steps
    enlarge  pools may have more nodes, which `added` counts, each at most as many as it has
    """

    def __init__(
        self, problem: FleetProblem, *, extend: bool = False, enlarge: bool = False
    ) -> None:
        from ortools.sat.python import cp_model

        self.problem = problem
        self.model = cp_model.CpModel()
        self.extend, self.enlarge = extend, enlarge
        self.horizon = problem.horizon
        self.chosen: list[list[list[cp_model.IntVar]]] = []
        self.starts: list[list[cp_model.IntVar]] = []
        self.ends: list[list[cp_model.IntVar]] = []
        self.late: list[Any] = []
        self._intervals: list[list[tuple[Any, int]]] = [[] for _ in problem.pools]
        self.usd_unit = self._unit()
        self.added: list[Any] = [
            self.model.new_int_var(0, pool.nodes, "") if enlarge else 0 for pool in problem.pools
        ]
        self._place()
        self._relate()
        self._pools()
        self.end = self.model.new_int_var(0, self.horizon, "end")
        for ends in self.ends:
            self.model.add(self.end >= ends[-1])
        if not enlarge:
            self._work()

    def _unit(self) -> float:
        """US dollars in a unit: a cent, or more where there are many."""
        jobs = self.problem.jobs
        dearest = sum(max(each.usd for each in phase) for job in jobs for phase in job.phases)
        dearest += sum(job.usd_per_step for job in jobs) * self.horizon
        return max(0.01, dearest / _MOST_UNITS)

    def _place(self) -> None:
        """Intervals of all choices, one of which is there."""
        for job in self.problem.jobs:
            starts, ends, chosen = [], [], []
            for phase in job.phases:
                start = self.model.new_int_var(job.release, self.horizon, "")
                end = self.model.new_int_var(job.release, self.horizon, "")
                there = [self.model.new_bool_var("") for _ in phase]
                for choice, present in zip(phase, there, strict=True):
                    self._one(choice, start, end, present)
                self.model.add_exactly_one(there)
                steps = sum(c.steps * one for c, one in zip(phase, there, strict=True))
                self.model.add(end == start + steps)
                starts.append(start)
                ends.append(end)
                chosen.append(there)
            self.starts.append(starts)
            self.ends.append(ends)
            self.chosen.append(chosen)

    def _one(self, choice: Choice, start: Any, end: Any, present: Any) -> None:
        pool = self.problem.pools[choice.pool]
        interval = self.model.new_optional_interval_var(start, choice.steps, end, present, "")
        self._intervals[choice.pool].append((interval, choice.nodes))
        if pool.opens:
            self.model.add(start >= pool.opens).only_enforce_if(present)
        if pool.closes is not None:
            self.model.add(end <= pool.closes).only_enforce_if(present)

    def _relate(self) -> None:
        """Phases in their order, jobs after others, pools that are kept, deadlines."""
        for number, job in enumerate(self.problem.jobs):
            ends = self.ends[number]
            for before, behind in zip(ends, self.starts[number][1:], strict=False):
                self.model.add(behind >= before)
            for other in job.after:
                self.model.add(self.starts[number][0] >= self.ends[other][-1])
            if not job.may_move and len(job.phases) > 1:
                for pool in range(len(self.problem.pools)):
                    first, *rest = [
                        sum(x for c, x in zip(phase, there, strict=True) if c.pool == pool)
                        for phase, there in zip(job.phases, self.chosen[number], strict=True)
                    ]
                    for other_phase in rest:
                        self.model.add(other_phase == first)
            late: Any = 0
            if job.deadline is not None and job.hard and not self.extend:
                self.model.add(ends[-1] <= job.deadline)
            elif job.deadline is not None:
                late = self.model.new_int_var(0, self.horizon, "")
                self.model.add(late >= ends[-1] - job.deadline)
            self.late.append(late)

    def _pools(self) -> None:
        for pool, added, intervals in zip(
            self.problem.pools, self.added, self._intervals, strict=True
        ):
            self.model.add_cumulative(
                [interval for interval, _ in intervals],
                [nodes for _, nodes in intervals],
                pool.nodes + added,
            )

    def _work(self) -> None:
        """Node-steps that fit: between the first release and the end of all, and between every
        release and every deadline."""
        jobs = self.problem.jobs
        everyone = range(len(jobs))
        for number, pool in enumerate(self.problem.pools):
            self.model.add(
                self._node_steps(number, everyone) <= pool.nodes * (self.end - pool.opens)
            )
            dues = sorted({job.deadline for job in jobs if job.deadline is not None})
            for due in dues:
                for release in sorted({max(job.release, pool.opens) for job in jobs}):
                    inside = [
                        index
                        for index, job in enumerate(jobs)
                        if job.deadline is not None
                        and job.deadline <= due
                        and max(job.release, pool.opens) >= release
                    ]
                    if len(inside) > 1 and due > release:
                        late = sum(self.late[index] for index in inside)
                        room = pool.nodes * (due + late - release)
                        self.model.add(self._node_steps(number, inside) <= room)

    def _node_steps(self, pool: int, jobs: Any) -> Any:
        return sum(
            choice.nodes * choice.steps * present
            for index in jobs
            for phase, there in zip(
                self.problem.jobs[index].phases, self.chosen[index], strict=True
            )
            for choice, present in zip(phase, there, strict=True)
            if choice.pool == pool
        )

    def target(self, level: str) -> Any:
        """What is to be least, in whole units."""
        jobs = self.problem.jobs
        pairs = list(zip(jobs, self.late, strict=True))
        if level == LATENESS:
            return sum(job.priority * late for job, late in pairs if not job.usd_per_step)
        if level == END:
            return self.end
        if level == _ORDER:
            return sum(j.priority * ends[-1] for j, ends in zip(jobs, self.ends, strict=True))
        spent = sum(
            math.floor(choice.usd / self.usd_unit) * present
            for job, chosen in zip(jobs, self.chosen, strict=True)
            for phase, there in zip(job.phases, chosen, strict=True)
            for choice, present in zip(phase, there, strict=True)
        )
        fines = sum(math.floor(j.usd_per_step / self.usd_unit) * late for j, late in pairs)
        return spent + fines

    def least(
        self, target: Any, limit_s: float, seed: int, gap: float
    ) -> tuple[str, float, Schedule | None]:
        """Status, bound in the target's units, and the schedule of the least value."""
        from ortools.sat.python import cp_model

        self.model.minimize(target)
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
            return status, 0.0, None
        return status, solver.best_objective_bound, self._read(solver)

    def _read(self, solver: cp_model.CpSolver) -> Schedule:
        self._last_added = [int(solver.value(each)) for each in self.added]
        return tuple(
            tuple(
                Placed(
                    choice=next(i for i, x in enumerate(there) if solver.value(x)),
                    start=int(solver.value(start)),
                )
                for there, start in zip(chosen, starts, strict=True)
            )
            for chosen, starts in zip(self.chosen, self.starts, strict=True)
        )

    @property
    def last_added(self) -> list[int]:
        """Of the schedule that `least` found last, the nodes added to each pool."""
        return self._last_added

    def keep(self, target: Any, schedule: Schedule, level: str) -> None:
        """No schedule from here on is worse at this level than this one."""
        if not isinstance(target, int):
            self.model.add(target <= self._units(schedule, level))

    def _units(self, schedule: Schedule, level: str) -> int:
        """The target's value of a schedule, as the model counts."""
        values = values_of(self.problem, schedule)
        if level != COST:
            return int(values.at(level))
        unit = self.usd_unit
        spent = sum(
            math.floor(job.phases[number][one.choice].usd / unit)
            for job, placed in zip(self.problem.jobs, schedule, strict=True)
            for number, one in enumerate(placed)
        )
        return spent + sum(
            math.floor(job.usd_per_step / unit) * late_steps(job, end_of(job, placed))
            for job, placed in zip(self.problem.jobs, schedule, strict=True)
        )

    def hint(self, schedule: Schedule) -> None:
        """A schedule to begin with."""
        self.model.clear_hints()  # type: ignore[no-untyped-call]  # ortools says no type
        for variable, value in self._hints(schedule):
            self.model.add_hint(variable, value)

    def _hints(self, schedule: Schedule) -> Iterator[tuple[Any, int]]:
        for number, placed in enumerate(schedule):
            for phase, one in enumerate(placed):
                steps = self.problem.jobs[number].phases[phase][one.choice].steps
                yield self.starts[number][phase], one.start
                yield self.ends[number][phase], one.start + steps
                for index, present in enumerate(self.chosen[number][phase]):
                    yield present, int(index == one.choice)
