"""What the page says of a plan: the answer and the report of `plan`, with pictures of the step."""

from __future__ import annotations

from dataclasses import replace

from planner.layout.layout_answer import LayoutChoice
from planner.many.answer_cache import AnswerCache
from profiles.errors import InfeasibleError
from shardwright.asking.answered import how_it_came_about
from shardwright.asking.layout_answers import LayoutAsker, none_fits, stacks_of
from shardwright.asking.places import answer_cache
from shardwright.asking.plan_request import PlanRequest
from shardwright.page.shown import Shown
from shardwright.reports.brief.plan_answers import planned_front, planned_layouts
from shardwright.reports.brief.plan_brief import Planned, plan_brief
from shardwright.reports.layout_report import best_of_others


def plan_shown(request: PlanRequest, *, explain: bool) -> Shown:
    """The answer, from the cache of answers where it is known; `explain` solves what would help.

    Raises InputError, and InfeasibleError where no framework or no front has a layout.
    """
    asker = LayoutAsker(request=request, explain=explain, cache=AnswerCache(folder=answer_cache()))
    stacks = stacks_of(request.stack)
    if request.pareto:
        choices = asker.front()
        planned = planned_front(request.model, request.on, stacks[0], choices)
        return _shown(request, planned, choices[0][1])
    if len(stacks) > 1:
        found = asker.by_framework()
        if not found.answers:
            raise InfeasibleError(none_fits(request, found.refused))
        planned = planned_layouts(found.answers, found.refused)
        return _shown(request, planned, found.answers[0].chosen)
    one = asker.one()
    planned = planned_layouts([one.answer], {})
    # What comes from the cache is what a search would find.
    ended = "" if one.found.cached else how_it_came_about(one.found, request.time_limit_s)
    told = (ended, best_of_others(one.answer, one.others))
    shown = _shown(request, planned, one.answer.chosen)
    fault = ""
    if one.answer.chosen is None:
        fault = f"no layout of {request.model} fits on {request.on} with {stacks[0]}"
    return replace(shown, told=tuple(filter(None, told)), fault=fault)


def _shown(request: PlanRequest, planned: Planned, chosen: LayoutChoice | None) -> Shown:
    planned = replace(planned, assumptions=(*request.price_told, *planned.assumptions))
    return Shown(brief=plan_brief(planned), chosen=chosen)
