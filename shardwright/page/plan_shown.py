"""What the page says of a plan: the answer and the report of `plan`, with pictures of the step."""

from __future__ import annotations

from dataclasses import replace

from planner.layout.layout_answer import LayoutChoice
from planner.many.answer_cache import AnswerCache
from profiles.errors import InfeasibleError, InputError
from shardwright.asking.answered import how_it_came_about
from shardwright.asking.layout_answers import LayoutAsker, none_fits, stacks_of
from shardwright.asking.places import answer_cache
from shardwright.asking.plan_request import PlanRequest
from shardwright.findings.layout_timeline import layout_timeline
from shardwright.page.shown import Shown
from shardwright.reports.brief.plan_answers import planned_front, planned_layouts
from shardwright.reports.brief.plan_brief import Planned, plan_brief
from shardwright.reports.layout_report import best_of_others
from shardwright.reports.memory_picture import memory_picture
from shardwright.reports.picture import Picture
from shardwright.reports.timeline_picture import timeline_picture

_DRAWN = (
    "One replica, its ranks by their numbers. The passes are drawn in the proportions of the "
    "kernels' measured surfaces and end where the predicted step does."
)


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
    told = (how_it_came_about(one.found), best_of_others(one.answer, one.others))
    shown = _shown(request, planned, one.answer.chosen)
    fault = ""
    if one.answer.chosen is None:
        fault = f"no layout of {request.model} fits on {request.on} with {stacks[0]}"
    return replace(shown, told=tuple(filter(None, told)), fault=fault)


def _shown(request: PlanRequest, planned: Planned, chosen: LayoutChoice | None) -> Shown:
    planned = replace(planned, assumptions=(*request.price_told, *planned.assumptions))
    brief = plan_brief(planned)
    if chosen is None:
        return Shown(brief=brief)
    try:
        return Shown(brief=brief, step=_pictures(chosen), step_note=_DRAWN)
    except InputError as error:
        return Shown(brief=brief, step_note=f"No timeline: {error}.")


def _pictures(chosen: LayoutChoice) -> tuple[Picture, ...]:
    step = layout_timeline(chosen)
    return timeline_picture(step.events, (), all_in=""), memory_picture(step, None)
