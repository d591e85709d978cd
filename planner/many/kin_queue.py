"""`KinQueue`: jobs that wait, given so that those of one kin go to one process."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from planner.many.sweep import Job


class KinQueue:
    """Jobs in their order, by kin. Which process solves a job changes no answer, only how much of
    what its kin share is computed again."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._kins: dict[str, deque[Job]] = {}
        for job in jobs:
            self._kins.setdefault(job.kin, deque()).append(job)
        self._begun: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._kins)

    def take(self, last: str | None = None) -> Job:
        """The next job of the kin `last`, of which a process has solved one; where none is left the
        first of a kin that nobody began with, and at the end of the kin that has most left.

        Raises IndexError where none waits.
        """
        if not self._kins:
            raise IndexError("no job waits")
        kin = last if last in self._kins else None
        if kin is None:
            fresh = (name for name in self._kins if name not in self._begun)
            kin = next(fresh, max(self._kins, key=lambda name: len(self._kins[name])))
        self._begun.add(kin)
        job = self._kins[kin].popleft()
        if not self._kins[kin]:
            del self._kins[kin]
        return job

    def put_back(self, job: Job) -> None:
        """Before the others of its kin."""
        self._kins.setdefault(job.kin, deque()).appendleft(job)
