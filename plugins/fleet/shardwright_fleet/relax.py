"""Why hard deadlines cannot be kept, and the smallest changes with which they can."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shardwright_fleet.problem import FleetProblem, Job, end_of, late_steps
from shardwright_fleet.solver import FleetModel


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
    """

    alone: tuple[Extension, ...]
    extensions: tuple[Extension, ...]
    added: tuple[int, ...]


def relax_fleet(
    problem: FleetProblem,
    *,
    clock: Callable[[], float] = lambda: 0.0,
    limit_s: float = math.inf,
    seed: int = 0,
) -> Relaxed:
    """The smallest changes of a problem that is infeasible."""
    end = clock() + limit_s
    hard = [(number, job) for number, job in enumerate(problem.jobs) if job.hard]
    alone = _late((number, job, earliest_end(problem, job)) for number, job in hard)
    longer = FleetModel(problem, extend=True)
    late = sum(longer.jobs[number].late for number, _ in hard)
    schedule = longer.least(late, max(0.05, (end - clock()) / 2), seed, 0.0).schedule
    added: tuple[int, ...] = ()
    if not alone:
        wider = FleetModel(problem, enlarge=True)
        added = wider.least(sum(wider.added), max(0.05, end - clock()), seed, 0.0).added
    return Relaxed(
        alone=alone,
        extensions=_late((n, job, end_of(job, schedule[n])) for n, job in hard) if schedule else (),
        added=added,
    )


def earliest_end(problem: FleetProblem, job: Job) -> int:
    """The step at which a job could be over, had it every pool to itself."""
    pools = range(len(problem.pools))
    found = []
    for allowed in (pools,) if job.may_move else ((pool,) for pool in pools):
        phases = [[choice for choice in phase if choice.pool in allowed] for phase in job.phases]
        if all(phases):
            opens = min(problem.pools[choice.pool].opens for choice in phases[0])
            steps = sum(min(choice.steps for choice in phase) for phase in phases)
            found.append(max(job.release, opens) + steps)
    return min(found, default=problem.horizon + 1)


def _late(ends: Iterable[tuple[int, Job, int]]) -> tuple[Extension, ...]:
    """Of jobs by number, with their ends, those that are over after their deadline."""
    return tuple(
        Extension(job=number, steps=late_steps(job, end))
        for number, job, end in ends
        if late_steps(job, end)
    )
