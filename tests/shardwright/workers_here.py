"""Workers of a sweep that are the test's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from planner.batch.sweep import Job, Reply, Workers


def solve_here(solve: Callable[[str], str]) -> Workers:
    """Workers that are this process: one job after the other."""

    def work(jobs: Sequence[Job]) -> Iterator[Reply]:
        for job in jobs:
            yield Reply(key=job.key, text=solve(job.text))

    return work
