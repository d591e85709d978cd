"""What the page says of a sized run: the answer and the report of `size`."""

from __future__ import annotations

import functools
import time

from shardwright.asking.sizing.size_flags import SizeFlags
from shardwright.asking.sizing.sized import Sized, SizeSolver
from shardwright.findings.size_details import size_details
from shardwright.findings.size_json import size_json
from shardwright.page.shown import Shown
from shardwright.reports.brief.size_brief import size_brief

_KEPT = 64
# Seconds of one search, as of the command line.
_LIMIT_S = 300.0


def size_shown(flags: SizeFlags, *, today: str, explain: bool) -> Shown:
    """The answer; with what the next node and dollar bring, and the trade-offs, where `explain`;
    `today` is an ISO day, for the age of prices.

    Raises InputError, UnknownNameError, DocumentError.
    """
    solver = _solver(today)
    sized = (_explained if explain else _sized)(flags, today)
    data = size_json(sized.question, sized.answer)
    data |= size_details(sized.question, sized.answer, seed=solver.seed, runs=solver.runs)
    if not explain:
        data["binds"] = None  # what binds is known of the neighbours that `explain` solves
    best, fault = sized.answer.best, ""
    if best is None:
        names = ",".join(choice.asked for choice in sized.question.choices)
        fault = f"nothing that was listed keeps the limits of {flags.model} on {names}"
    chosen = None if best is None else best.plan
    return Shown(brief=size_brief(data), chosen=chosen, fault=fault)


@functools.lru_cache(maxsize=_KEPT)
def _sized(flags: SizeFlags, today: str) -> Sized:
    return _solver(today).solve(flags, explain=False)


@functools.lru_cache(maxsize=_KEPT)
def _explained(flags: SizeFlags, today: str) -> Sized:
    return _solver(today).explained(_sized(flags, today))


def _solver(today: str) -> SizeSolver:
    return SizeSolver(clock=time.monotonic, today=today, limit_s=_LIMIT_S)
