"""The plan page: the best plan and runners-up for a model and a cluster."""

from __future__ import annotations

import datetime
from dataclasses import replace

import streamlit as st

from planner.batch.answer_cache import AnswerCache
from planner.layout.layout_answer import LayoutChoice
from profiles.errors import InfeasibleError
from shardwright.page.draw_answer import PageAnswer, draw_answer, draw_command
from shardwright.page.fields import command_of
from shardwright.page.inputs import Inputs
from shardwright.page.plan_question import PLAN_FIELDS, read_plan
from shardwright.reports.brief.plan_answers import planned_front, planned_layouts
from shardwright.reports.brief.plan_brief import Planned, plan_brief
from shardwright.reports.layout_summary import framework_rows
from shardwright.requests.cached_answer import how_it_came_about
from shardwright.requests.layout_answers import LayoutRequester, none_fits, stacks_of
from shardwright.requests.local_paths import answer_cache
from shardwright.requests.plan_request import PlanRequest


def plan_page() -> None:
    """Draws the inputs, the equivalent command line, and the answer."""
    inputs = Inputs(page="plan", fields=PLAN_FIELDS)
    inputs.draw()
    command = command_of("plan", PLAN_FIELDS, inputs.values)
    inputs.show_errors(inputs.errors)
    draw_command(command)
    with inputs.showing_errors():
        request = read_plan(inputs.values, today=datetime.date.today().isoformat())
        with st.spinner("Searching the layouts", show_time=True):
            answer = plan_answer(request, explain=bool(inputs.values["explain"]))
        draw_answer(answer, command)


def plan_answer(request: PlanRequest, *, explain: bool) -> PageAnswer:
    """The answer, from the cache if present; `explain` adds sensitivities.

    Raises InputError, and InfeasibleError if no framework or no front has a layout.
    """
    asker = LayoutRequester(
        request=request, explain=explain, cache=AnswerCache(folder=answer_cache())
    )
    stacks = stacks_of(request.options.stack)
    if request.options.pareto:
        choices = asker.front()
        asked = request.options
        planned = planned_front(asked.model, asked.on, stacks[0], asked.pareto, choices)
        return _page_answer(request, planned, choices[0][1])
    if len(stacks) > 1:
        answers, refused = asker.by_framework()
        if not answers:
            raise InfeasibleError(none_fits(request, refused))
        return _page_answer(request, planned_layouts(answers, refused), answers[0].chosen)
    one = asker.one()
    planned = planned_layouts([one.answer], {})
    # A cached answer equals that of a search, so it needs no note.
    ended = "" if one.cached else how_it_came_about(one, request.time_limit_s)
    notes = (ended, *framework_rows(one.answer, one.others))
    answer = _page_answer(request, planned, one.answer.chosen)
    asked, fault = request.options, ""
    if one.answer.chosen is None:
        fault = f"no layout of {asked.model} fits on {asked.on} with {stacks[0]}"
    return replace(answer, notes=tuple(filter(None, notes)), fault=fault)


def _page_answer(request: PlanRequest, planned: Planned, chosen: LayoutChoice | None) -> PageAnswer:
    planned = replace(planned, assumptions=(*request.price_notes, *planned.assumptions))
    return PageAnswer(brief=plan_brief(planned), chosen=chosen)
