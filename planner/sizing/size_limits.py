"""Which limit a run meets, and where none keeps them all the least changes under which one does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from planner.sizing.size_answer import Relaxation
from planner.sizing.size_question import TOKENS, SizeQuestion
from planner.sizing.sizing_search import SizedDevice, SizedRun
from profiles.units import format_time, format_usd

# A limit binds where so little of it is left.
_LEFT = 0.03
Search = Callable[[SizeQuestion], tuple[SizedDevice, ...]]


def binding_limit(question: SizeQuestion, best: SizedRun, others: Sequence[SizedRun]) -> str:
    """What keeps the best run from being better, in words.

    others   runs with other nodes, whatever the limits: one that would be better shows what binds
    """
    said = []
    if question.minimise == TOKENS:
        spent = best.usd is not None and best.usd >= (1 - _LEFT) * (question.budget_usd or math.inf)
        limits = (spent, f"the budget of {format_usd(question.budget_usd or 0.0)}")
        said.append(limits[1] if spent else f"the deadline of {_days(question.deadline_s)}")
    better = min((run for run in others if _figure(question, run) < _figure(question, best)),
                 key=lambda run: _figure(question, run), default=None)  # fmt: skip
    if better is not None and question.minimise != TOKENS:
        late = question.deadline_s is not None and better.hours * 3600 > question.deadline_s
        dear = better.usd is not None and better.usd > (question.budget_usd or math.inf)
        what = f"{better.devices:,} {better.choice.asked} would take {better.hours / 24:.3g} d" + (
            f" and {format_usd(better.usd)}" if better.usd is not None else ""
        )
        if late:
            said.append(f"the deadline: {what}")
        elif dear:
            said.append(f"the budget: {what}")
    if best.choice.fewest == best.choice.most:
        said.append(f"the nodes given, {best.nodes}")
    elif best.nodes == best.choice.most:
        said.append(f"the most nodes allowed, {best.nodes}")
    elif best.nodes == best.choice.fewest and best.nodes > 1:
        said.append(f"the fewest nodes allowed, {best.nodes}")
    if said:
        return " and ".join(said)
    return {
        "cost": "no limit: fewer nodes lack memory or lose speed, more scale worse",
        "energy": "no limit: fewer nodes lack memory or lose speed, more scale worse",
        "time": "the batch: more nodes leave too little work for each",
        "devices": "memory: fewer nodes do not hold the model",
    }.get(question.minimise, "no limit")


def _figure(question: SizeQuestion, run: SizedRun) -> float:
    usd = run.usd if run.usd is not None else math.inf
    return {"time": run.hours, "energy": run.kwh, "devices": float(run.devices)}.get(
        question.minimise, usd
    )


def _days(seconds: float | None) -> str:
    return format_time(seconds or 0.0)


def relaxations_of(question: SizeQuestion, search: Search) -> tuple[Relaxation, ...]:
    """For each limit the least that it would have to be with the others kept; where that has no
    answer either, with it alone."""
    if question.minimise == TOKENS:
        return ()
    found = []
    free = replace(question, deadline_s=None, budget_usd=None)
    if question.deadline_s is not None:
        run = _best(search(replace(question, deadline_s=None, minimise="time")))
        run = run or _best(search(replace(free, minimise="time")))
        if run is not None:
            kept = run.usd is None or run.usd <= (question.budget_usd or run.usd)
            words = f"a deadline of {format_time(run.hours * 3600)}, the fastest there is"
            if not kept and run.usd is not None:
                words += f", and a budget of {format_usd(run.usd)}"
            elif question.budget_usd is not None:
                words += " within the budget"
            found.append(_relaxation(words, "--deadline", run))
    if question.budget_usd is not None:
        run = _best(search(replace(question, budget_usd=None, minimise="cost")))
        run = run or _best(search(replace(free, minimise="cost")))
        if run is not None and run.usd is not None:
            words = f"a budget of {format_usd(run.usd)}, the cheapest there is"
            if question.deadline_s is not None:
                late = run.hours * 3600 > question.deadline_s
                words += f", and {format_time(run.hours * 3600)}" if late else " in time"
            found.append(_relaxation(words, "--budget", run))
    return tuple(found)


def _best(found: tuple[SizedDevice, ...]) -> SizedRun | None:
    runs = [one.best for one in found if one.best is not None]
    return min(runs, key=lambda run: run.value, default=None)


def _relaxation(words: str, flag: str, run: SizedRun) -> Relaxation:
    return Relaxation(
        change=words,
        flag=flag,
        days=run.hours / 24.0,
        usd=run.usd,
        devices=run.devices,
        device=run.choice.asked,
    )
