"""The answer of `size` for the page, with its report."""

from __future__ import annotations

import functools
import time
from dataclasses import replace

from shardwright.analysis.size_details import size_details
from shardwright.analysis.size_json import size_json
from shardwright.page.page_answer import PageAnswer
from shardwright.reports.brief.size_brief import size_brief
from shardwright.requests.sizing.size_flags import SizeFlags
from shardwright.requests.sizing.sized import Detail, Sized, SizeSolver

_KEPT = 64
# Time limit of a search in seconds, as on the command line.
_LIMIT_S = 300.0


def size_answer(flags: SizeFlags, *, today: str, explain: bool) -> PageAnswer:
    """The answer; `explain` adds the gain of one more node and dollar, and the trade-offs.

    today  ISO date, for the age of prices

    Raises InputError, UnknownNameError, DocumentError.
    """
    solver = _solver(today)
    sized = (_explained if explain else _sized)(flags, today)
    data = size_json(sized.question, sized.answer)
    data |= size_details(sized.question, sized.answer, seed=solver.seed, runs=solver.runs)
    if not explain:
        data["binds"] = None  # the binding limit follows from the neighbors that `explain` solves
    best, fault = sized.answer.best, ""
    if best is None:
        names = ",".join(choice.asked for choice in sized.question.choices)
        fault = f"no listed option trains {flags.model} on {names} within the limits"
    chosen = None if best is None else best.plan
    return PageAnswer(brief=size_brief(data), chosen=chosen, fault=fault)


@functools.lru_cache(maxsize=_KEPT)
def _sized(flags: SizeFlags, today: str) -> Sized:
    return replace(_solver(today), detail=Detail.BEST).solve(flags)


@functools.lru_cache(maxsize=_KEPT)
def _explained(flags: SizeFlags, today: str) -> Sized:
    return _solver(today).explained(_sized(flags, today))


def _solver(today: str) -> SizeSolver:
    return SizeSolver(clock=time.monotonic, today=today, limit_s=_LIMIT_S)
