"""What stands in the way of hard deadlines, and the smallest changes that let them be kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from planner.fleet.fleet_problem import FleetProblem, Job, Schedule, end_of, late_steps
from planner.fleet.fleet_solver import FleetModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """A job whose hard deadline would have to be so many steps later."""

    job: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """Why nothing keeps the hard deadlines.

    alone       jobs that do not keep theirs with all pools to themselves, and when they would end
    extensions  the least steps in sum by which deadlines would have to be later; () where windows
                of pools, and no deadlines, are in the way
    added       of each pool the nodes that would do, the fewest in sum, of jobs that run on as many
                as before; () where such nodes do not help
    schedule    with the extensions
    """

    alone: tuple[Extension, ...]
    extensions: tuple[Extension, ...]
    added: tuple[int, ...]
    schedule: Schedule | None


def relax_fleet(
    problem: FleetProblem,
    *,
    clock: Callable[[], float] = lambda: 0.0,
    limit_s: float = math.inf,
    seed: int = 0,
) -> Relaxed:
    """The smallest changes of a problem that is infeasible."""
    end = clock() + limit_s
    alone = tuple(
        Extension(job=number, steps=earliest_end(problem, job) - job.deadline)
        for number, job in enumerate(problem.jobs)
        if job.hard and job.deadline is not None and earliest_end(problem, job) > job.deadline
    )
    longer = FleetModel(problem, extend=True)
    hard = [late for job, late in zip(problem.jobs, longer.late, strict=True) if job.hard]
    _, _, schedule = longer.least(sum(hard), max(0.05, (end - clock()) / 2), seed, 0.0)
    extensions = () if schedule is None else _extensions(problem, schedule)
    added: tuple[int, ...] = ()
    if not alone:
        wider = FleetModel(problem, enlarge=True)
        _, _, found = wider.least(sum(wider.added), max(0.05, end - clock()), seed, 0.0)
        added = tuple(wider.last_added) if found is not None else ()
    return Relaxed(alone=alone, extensions=extensions, added=added, schedule=schedule)


def earliest_end(problem: FleetProblem, job: Job) -> int:
    """The step at which a job could be over, had it every pool to itself."""
    pools = range(len(problem.pools))
    if job.may_move:
        each = [min(choice.steps for choice in phase) for phase in job.phases]
        opens = min(problem.pools[choice.pool].opens for choice in job.phases[0])
        return max(job.release, opens) + sum(each)
    found = []
    for pool in pools:
        kept = [[c.steps for c in phase if c.pool == pool] for phase in job.phases]
        if all(kept):
            found.append(max(job.release, problem.pools[pool].opens) + sum(map(min, kept)))
    return min(found, default=problem.horizon + 1)


def _extensions(problem: FleetProblem, schedule: Schedule) -> tuple[Extension, ...]:
    late = [
        (number, late_steps(job, end_of(job, placed)))
        for number, (job, placed) in enumerate(zip(problem.jobs, schedule, strict=True))
        if job.hard
    ]
    return tuple(Extension(job=number, steps=steps) for number, steps in late if steps)
