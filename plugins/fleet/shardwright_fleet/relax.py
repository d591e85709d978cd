"""Why hard deadlines cannot be kept, and the smallest changes that make them possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shardwright_fleet.problem import FleetProblem, Job, end_of, late_steps
from shardwright_fleet.solver import FleetModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """A job, and the steps by which its hard deadline would have to be later."""

    job: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """Reasons why no schedule keeps the hard deadlines.

    alone       jobs that miss their deadline even with all pools to themselves, with their ends
    extensions  later deadlines with the smallest sum of steps; () if windows of pools are the
                obstacle instead
    added       additional nodes per pool, with the smallest sum, for jobs on as many nodes as
                before; () if no number suffices
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
    """The smallest changes that make an infeasible problem feasible."""
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
    """The earliest end of a job, in steps, with every pool to itself."""
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
    """The late jobs among `ends` (job number -> end)."""
    return tuple(
        Extension(job=number, steps=late_steps(job, end))
        for number, job, end in ends
        if late_steps(job, end)
    )
