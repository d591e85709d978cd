"""The chosen plan's step over time, and the memory of its ranks."""

from __future__ import annotations

from planner.layout.layout_answer import LayoutChoice
from profiles.errors import InputError
from shardwright.findings.layout_timeline import layout_timeline
from shardwright.page.shown import Shown
from shardwright.reports.brief.brief import Brief
from shardwright.reports.memory_picture import memory_picture
from shardwright.reports.timeline_picture import timeline_picture

_DRAWN = (
    "One replica, its ranks by their numbers. The passes are drawn in the proportions of the "
    "kernels' measured surfaces and end where the predicted step does."
)


def shown_with_step(brief: Brief, chosen: LayoutChoice | None) -> Shown:
    """The report with the pictures of the chosen plan's step, or why they are not drawn."""
    if chosen is None:
        return Shown(brief=brief)
    try:
        step = layout_timeline(chosen)
    except InputError as error:
        return Shown(brief=brief, step_note=f"No picture of the step: {error}.")
    pictures = timeline_picture(step.events, (), all_in=""), memory_picture(step, None)
    return Shown(brief=brief, step=pictures, step_note=_DRAWN)
