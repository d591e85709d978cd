"""The binding limit of a run; if no run keeps all limits, the smallest changes of limits with which
one does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from planner.layout.layout_answer import layout_title
from planner.layout.layout_question import LayoutSolver
from planner.neighbors import Neighbor, answered
from planner.sizing.run_outlook import Relaxation
from planner.sizing.size_question import TOKENS, SizeQuestion
from planner.sizing.sizing_search import SizedDevice, SizedRun, layout_question_of
from profiles.errors import InputError
from profiles.units import format_bytes, format_days, format_time, format_usd

# With no answer, this multiple of the allowed nodes is searched.
_ROOM = 4
Search = Callable[[SizeQuestion], tuple[SizedDevice, ...]]
"""The best run of every type of device of a question."""


def binding_limit(question: SizeQuestion, best: SizedRun, others: Sequence[SizedRun]) -> str:
    """The limit that restricts the best run, as text.

    others  runs on other numbers of nodes, without limits: a better one shows the binding limit
    """
    said = []
    if question.minimise == TOKENS:
        spent = (best.usd or 0.0) / (question.budget_usd or math.inf)
        late = best.hours * 3600 / (question.deadline_s or math.inf)
        said.append(
            f"the budget of {format_usd(question.budget_usd or 0.0)}"
            if spent >= late
            else f"the deadline of {format_time(question.deadline_s or 0.0)}"
        )
    better = min((run for run in others if _figure(question, run) < _figure(question, best)),
                 key=lambda run: _figure(question, run), default=None)  # fmt: skip
    if better is not None and question.minimise != TOKENS:
        late = question.deadline_s is not None and better.hours * 3600 > question.deadline_s
        dear = better.usd is not None and better.usd > (question.budget_usd or math.inf)
        days = format_days(better.hours / 24)
        what = f"{better.devices:,} {better.choice.each} would take {days} d" + (
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
    if question.minimise == "devices" and best.nodes == 1:
        return "no limit: one node is the fewest there is"
    return {
        "cost": "no limit: fewer nodes lack memory or lose speed, more scale worse",
        "energy": "no limit: fewer nodes lack memory or lose speed, more scale worse",
        "time": "the batch: more nodes leave too little work for each",
        "devices": "memory: fewer nodes do not hold the model",
    }.get(question.minimise, "no limit")


def memory_short(question: SizeQuestion, solver: LayoutSolver) -> str:
    """Message on the memory shortfall on the most nodes of the first device type, with the first
    framework; "" if the model fits or no time is left."""
    if not solver.has_time:
        return ""
    choice = question.choices[0]
    stack = question.stack_groups(choice)[0][0]
    asked = layout_question_of(
        question, choice, stack, question.batches[0], choice.node_devices, choice.most
    )
    try:
        outcome = solver.search(asked)
    except InputError as error:
        return str(error)
    miss = outcome.near_miss
    if miss is None:
        return ""
    devices = choice.most * choice.node_devices
    return (
        f"on {devices:,} {choice.each} the layout that comes nearest needs "
        f"{format_bytes(miss.memory.needed_bytes)} of {format_bytes(miss.capacity_bytes)} that "
        f"may be used ({stack.name}: {layout_title(miss.run)})"
    )


def _figure(question: SizeQuestion, run: SizedRun) -> float:
    usd = run.usd if run.usd is not None else math.inf
    return {"time": run.hours, "energy": run.kwh, "devices": float(run.devices)}.get(
        question.minimise, usd
    )


def relaxations_of(question: SizeQuestion, search: Search) -> tuple[Relaxation, ...]:
    """The smallest change of each limit with which there is an answer, while the other limits are
    kept; if there is none, without the others."""
    if question.minimise == TOKENS:
        return ()
    found = []
    for neighbor, run in answered(_neighbors(question), lambda asked: _best(search(asked))):
        words, hours = "", format_time(run.hours * 3600)
        if neighbor.kind == "--nodes" and run.nodes > run.choice.most // _ROOM:
            words = "the fewest that keep everything else"
        elif neighbor.kind == "--deadline":
            words = f"a deadline of {hours}, the fastest there is"
            if run.usd is not None and run.usd > (question.budget_usd or math.inf):
                words += f", and a budget of {format_usd(run.usd)}"
            elif question.budget_usd is not None:
                words += " within the budget"
        elif neighbor.kind == "--budget" and run.usd is not None:
            words = f"a budget of {format_usd(run.usd)}, the cheapest there is"
            if question.deadline_s is not None:
                late = run.hours * 3600 > question.deadline_s
                words += f", and {hours}" if late else " in time"
        if words:
            found.append(
                Relaxation(
                    change=words,
                    flag=neighbor.kind,
                    days=run.hours / 24.0,
                    usd=run.usd,
                    devices=run.devices,
                    device=run.choice.asked,
                )
            )
    return tuple(found)


def _neighbors(question: SizeQuestion) -> Iterator[Neighbor[SizeQuestion]]:
    """More nodes; each limit dropped, with and without the other limit."""
    choices = tuple(
        replace(choice, most=_ROOM * choice.most if choice.cluster is None else choice.most)
        for choice in question.choices
    )
    yield Neighbor("--nodes", replace(question, choices=choices, minimise="devices"), "")
    free = replace(question, deadline_s=None, budget_usd=None)
    for asked in (question, free) if question.deadline_s is not None else ():
        yield Neighbor("--deadline", replace(asked, deadline_s=None, minimise="time"), "")
    for asked in (question, free) if question.budget_usd is not None else ():
        yield Neighbor("--budget", replace(asked, budget_usd=None, minimise="cost"), "")


def _best(found: tuple[SizedDevice, ...]) -> SizedRun | None:
    runs = [one.best for one in found if one.best is not None]
    return min(runs, key=lambda run: run.value, default=None)
