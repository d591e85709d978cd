"""The answer to a request: from the cache if possible, otherwise searched and stored."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Generic, TypeVar

from planner.batch.answer_cache import AnswerCache
from planner.batch.sweep import with_price
from planner.layout.layout_answer import LayoutFile
from profiles.model.tracing.traced import TracedModel
from profiles.sourced import Sourced
from profiles.units import format_percent, format_time
from shardwright.requests.solve_task import Task, key_of, trace_task
from simulator.values.plan_file import PlanFile

A = TypeVar("A", PlanFile, LayoutFile)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedAnswer(Generic[A]):
    """An answer with its dollars.

    cached       from the cache; its search time is the original one
    interrupted  Ctrl-C ended the search: the best plan so far, with its gap
    others       answers of the other compared frameworks, fastest first
    """

    answer: A
    cached: bool = False
    interrupted: bool = False
    others: tuple[LayoutFile, ...] = ()


def answered(
    task: Task,
    solve: Callable[[TracedModel], PlanFile],
    *,
    price: Sourced | None,
    cache: AnswerCache | None,
    time_limit_s: float | None = None,
) -> CachedAnswer[PlanFile]:
    """The answer to a task.

    solve         the search, given the traced model; called only if the cache has no answer
    cache         None neither reads nor writes one
    time_limit_s  limit of `solve`; answers of searches ended by it or by Ctrl-C are not stored,
                  because a longer search may find a better one
    """
    # A factory is known by its traces only; a configuration needs none for a known answer.
    traced = trace_task(task) if cache is None or task.spec.factory else None
    key = key_of(task, traced) if cache is not None else ""
    known = cache.find(key) if cache is not None else None
    if isinstance(known, PlanFile):
        return CachedAnswer(answer=with_price(known, price), cached=True)
    with _noticing_interrupts() as seen:
        found = solve(traced if traced is not None else trace_task(task))
    in_time = time_limit_s is None or found.search_time_s <= time_limit_s
    if cache is not None and in_time and not seen:
        cache.keep(key, found)
    return CachedAnswer(answer=with_price(found, price), interrupted=bool(seen))


@contextmanager
def _noticing_interrupts() -> Iterator[list[int]]:
    """Context that records Ctrl-C, because the search catches its exception."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    before = signal.getsignal(signal.SIGINT)

    def notice(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGINT, notice)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def how_it_came_about(
    found: CachedAnswer[PlanFile] | CachedAnswer[LayoutFile], time_limit_s: float | None = None
) -> str:
    """A note on a cached or interrupted answer; "" if it was solved completely."""
    if found.cached:
        took = format_time(found.answer.search_time_s)
        return f"Cache:  the same question was solved before, in {took}; --no-cache solves it again"
    if found.interrupted:
        gap = format_percent(found.answer.gap or 0.0)
        return f"Ended:  by Ctrl-C; the best plan by then, at most {gap} above the best there is"
    limited = time_limit_s is not None and found.answer.search_time_s >= 0.95 * time_limit_s
    if found.answer.status == "feasible" and limited and time_limit_s is not None:
        gap = format_percent(found.answer.gap or 0.0)
        more = format_time(4 * time_limit_s).replace(" ", "")
        return (
            f"Ended:  by the limit of {format_time(time_limit_s)}, at most {gap} above the best "
            f"there is; --time-limit {more} searches longer"
        )
    return ""
