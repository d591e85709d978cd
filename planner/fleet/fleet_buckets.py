"""Buckets of time: what a schedule must do within windows, as linear constraints.

Time is cut at `cuts`. If a phase with a choice of n nodes and d steps ends within the bucket
(p, q], it runs within a window for at least the less of the overlaps of ending at p + 1 and at q,
since the overlap of an interval of fixed length with a window first rises and then falls with its
end. So with u[phase, choice, bucket] one of the choices and buckets of each phase, for every window
of w steps

    sum of n * overlap * u  <=  C w

which is a relaxation of the cumulative constraint, as a time-indexed formulation is (Sousa and
Wolsey, A time indexed formulation of non-preemptive single machine scheduling problems,
Mathematical Programming 54, 1992), with buckets in the place of single steps.
"""

from __future__ import annotations

from itertools import pairwise

from planner.fleet.fleet_problem import FleetProblem

_EVEN, _BEHIND = 24, 10
_GROWTH = 1.35


def cuts_of(problem: FleetProblem) -> tuple[int, ...]:
    """Where time is cut: at deadlines, evenly before the last of them, ever further apart behind.

    The first is 0 and the last the horizon.
    """
    horizon = problem.horizon
    dues = {job.deadline for job in problem.jobs if job.deadline is not None}
    releases = {job.release for job in problem.jobs} | {pool.opens for pool in problem.pools}
    last = max(dues, default=0) or min(horizon, least_end(problem))
    found = dues | releases | {last * number // _EVEN for number in range(1, _EVEN + 1)}
    step = max(1, last // _EVEN)
    at = last
    for _ in range(_BEHIND):
        at += step
        step = round(step * _GROWTH) + 1
        found.add(at)
    return (0, *sorted(cut for cut in found if 0 < cut < horizon), horizon)


def least_end(problem: FleetProblem) -> int:
    """A step about which a schedule may end: all work evenly over all pools."""
    work = sum(
        min(choice.nodes * choice.steps for choice in phase)
        for job in problem.jobs
        for phase in job.phases
    )
    return max(1, -(-work // sum(pool.nodes for pool in problem.pools)))


def overlap(first_end: int, last_end: int, steps: int, begin: int, end: int) -> int:
    """Steps at least within the window (begin, end] of a phase that ends between two steps."""

    def at(ends: int) -> int:
        return max(0, min(ends, end) - max(ends - steps, begin))

    return min(at(first_end), at(last_end))


def windows_of(cuts: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """From the beginning until every cut, and between neighbours."""
    until = [(cuts[0], cut) for cut in cuts[1:-1]]
    between = pairwise(cuts[1:-1])
    return (*until, *between)
