"""`solve_into`: jobs answered into a store, by whatever workers, whoever began with them before."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from planner.many.result_store import ResultStore
from planner.many.sweep import Job, Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A job that ended now; `fault` says why it has no answer, "" where it has one."""

    key: str
    fault: str = ""


def solve_into(
    store: ResultStore, jobs: Sequence[Job], workers: Workers, *, clock: Callable[[], float]
) -> Iterator[Ended]:
    """The jobs in the order in which they end; their answers are in the store.

    An answer is JSON whose `reason` is "". What has a reason, and what a worker could not solve, is
    not kept: it is tried again the next time.
    """
    try:
        for reply in workers(jobs):
            fault = reply.fault or str(json.loads(reply.text).get("reason", ""))
            if not fault:
                store.keep(reply.key, reply.text, now_s=clock())
            yield Ended(key=reply.key, fault=fault)
    finally:
        store.commit()
