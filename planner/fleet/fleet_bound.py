"""`BoundModel`: a relaxation without places in time, for bounds that the schedule's model lacks.

Time is cut into buckets (fleet_buckets.py); of each phase one choice and the bucket of its end are
chosen, so that within every window every pool does no more than it can. Phases follow each other by
their buckets. What is least of this is no more than of any schedule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from planner.fleet.fleet_buckets import cuts_of, overlap, windows_of
from planner.fleet.fleet_problem import COST, END, LATENESS, FleetProblem, Job, Values


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """A choice and the bucket that it ends in: a variable; first, until  its earliest and latest
    end."""

    variable: Any
    job: int
    phase: int
    choice: int
    first: int
    until: int


class BoundModel:
    """The relaxation; `least` gives bounds."""

    def __init__(self, problem: FleetProblem) -> None:
        from ortools.sat.python import cp_model

        self.problem = problem
        self.model = cp_model.CpModel()
        self.ends: list[_End] = []
        cuts = cuts_of(problem)
        for number, job in enumerate(problem.jobs):
            for phase in range(len(job.phases)):
                self._phase(cuts, number, job, phase)
        self.by_phase: dict[tuple[int, int], list[_End]] = {}
        for end in self.ends:
            self.by_phase.setdefault((end.job, end.phase), []).append(end)
        self._windows(cuts)
        self._orders()
        self.end = self.model.new_int_var(0, problem.horizon, "end")
        self._last()

    def _phase(self, cuts: tuple[int, ...], number: int, job: Job, phase: int) -> None:
        there = []
        for index, choice in enumerate(job.phases[phase]):
            pool = self.problem.pools[choice.pool]
            least = max(job.release, pool.opens) + choice.steps
            latest = self.problem.horizon if pool.closes is None else pool.closes
            if job.hard and job.deadline is not None:
                latest = min(latest, job.deadline)
            for before, until in pairwise(cuts):
                first, until = max(before + 1, least), min(until, latest)
                if first <= until:
                    variable = self.model.new_bool_var("")
                    there.append(variable)
                    self.ends.append(
                        _End(
                            variable=variable,
                            job=number,
                            phase=phase,
                            choice=index,
                            first=first,
                            until=until,
                        )
                    )
        self.model.add_exactly_one(there)

    def _windows(self, cuts: tuple[int, ...]) -> None:
        for begin, stop in windows_of(cuts):
            work: dict[int, list[Any]] = {}
            for end in self.ends:
                choice = self.problem.jobs[end.job].phases[end.phase][end.choice]
                inside = overlap(end.first, end.until, choice.steps, begin, stop)
                if inside:
                    work.setdefault(choice.pool, []).append(choice.nodes * inside * end.variable)
            for number, parts in work.items():
                pool = self.problem.pools[number]
                room = pool.nodes * max(0, stop - max(begin, pool.opens))
                self.model.add(sum(parts) <= room)

    def _orders(self) -> None:
        """Phases and jobs behind others end so much later."""
        for number, job in enumerate(self.problem.jobs):
            for phase in range(1, len(job.phases)):
                self._behind((number, phase - 1), (number, phase))
            for other in job.after:
                last = len(self.problem.jobs[other].phases) - 1
                self._behind((other, last), (number, 0))

    def _behind(self, before: tuple[int, int], after: tuple[int, int]) -> None:
        earliest = sum(end.first * end.variable for end in self.by_phase[before])
        begins = sum(
            (end.until - self.problem.jobs[end.job].phases[end.phase][end.choice].steps)
            * end.variable
            for end in self.by_phase[after]
        )
        self.model.add(begins >= earliest)

    def _last(self) -> None:
        for number, job in enumerate(self.problem.jobs):
            ends = self.by_phase[number, len(job.phases) - 1]
            self.model.add(self.end >= sum(end.first * end.variable for end in ends))
        for number, pool in enumerate(self.problem.pools):
            work = [
                choice.nodes * choice.steps * end.variable
                for end in self.ends
                if (choice := self.problem.jobs[end.job].phases[end.phase][end.choice]).pool
                == number
            ]
            self.model.add(sum(work) <= pool.nodes * (self.end - pool.opens))

    def _late(self, end: _End) -> int:
        job = self.problem.jobs[end.job]
        if job.deadline is None or end.phase != len(job.phases) - 1:
            return 0
        return max(0, end.first - job.deadline)

    def target(self, level: str, unit: float) -> Any:
        """What is to be least; dollars in whole units."""
        jobs = self.problem.jobs
        if level == END:
            return self.end
        if level == LATENESS:
            return sum(
                jobs[end.job].priority * self._late(end) * end.variable
                for end in self.ends
                if not jobs[end.job].usd_per_step
            )
        return sum(
            (
                math.floor(jobs[end.job].phases[end.phase][end.choice].usd / unit)
                + math.floor(jobs[end.job].usd_per_step / unit) * self._late(end)
            )
            * end.variable
            for end in self.ends
        )

    def keep(self, level: str, values: Values, unit: float) -> None:
        """No more at this level than a schedule has."""
        target = self.target(level, unit)
        most = values.at(level) / (unit if level == COST else 1.0)
        if not isinstance(target, int):
            self.model.add(target <= math.ceil(most))

    def least(self, level: str, unit: float, *, limit_s: float, seed: int, gap: float) -> float:
        """A bound of a level, in its units; 0 where none was proven in time."""
        from ortools.sat.python import cp_model

        target = self.target(level, unit)
        if isinstance(target, int):
            return float(target)
        self.model.minimize(target)
        solver = cp_model.CpSolver()
        solver.parameters.random_seed = seed
        solver.parameters.num_workers = 8
        solver.parameters.interleave_search = True
        solver.parameters.linearization_level = 2
        solver.parameters.relative_gap_limit = gap
        if math.isfinite(limit_s):
            solver.parameters.max_time_in_seconds = limit_s
        code = solver.solve(self.model)
        if code not in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):
            return 0.0
        return max(0.0, solver.best_objective_bound)
