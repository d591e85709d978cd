"""The size page: devices to rent for a run, with its duration and cost."""

from __future__ import annotations

import datetime
import functools
import time
from dataclasses import replace

import streamlit as st

from shardwright.analysis.size_details import size_details
from shardwright.analysis.size_json import size_json
from shardwright.page.draw_answer import PageAnswer, draw_answer, draw_command
from shardwright.page.fields import command_of
from shardwright.page.inputs import Inputs
from shardwright.page.plan_question import SIZE_FIELDS, read_size
from shardwright.reports.brief.size_brief import size_brief
from shardwright.requests.sizing.size_flags import SizeFlags
from shardwright.requests.sizing.sized import Detail, Sized, SizeSolver

_KEPT = 64
# Time limit of a search in seconds, as on the command line.
_LIMIT_S = 300.0


def size_page() -> None:
    """Draws the inputs, the equivalent command line, and the answer: first the devices to rent,
    then again with the gain of one more node or dollar."""
    inputs = Inputs(page="size", fields=SIZE_FIELDS)
    inputs.draw()
    command = command_of("size", SIZE_FIELDS, inputs.values)
    inputs.show_errors(inputs.errors)
    draw_command(command)
    place = st.empty()
    today = datetime.date.today().isoformat()
    with inputs.showing_errors():
        flags = read_size(inputs.values, today=today)
        with st.spinner("Searching devices, nodes and layouts", show_time=True):
            answer = size_answer(flags, today=today, explain=False)
        with place.container():
            draw_answer(answer, command, stage="first")
        with st.spinner("Solving with one more node or dollar", show_time=True):
            answer = size_answer(flags, today=today, explain=True)
        with place.container():
            draw_answer(answer, command)


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
        fault = f"no listed option trains {flags.options.model} on {names} within the limits"
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
