"""Pictures of the chosen plan's step: timeline, and memory of its ranks."""

from __future__ import annotations

from dataclasses import dataclass

from planner.layout.layout_answer import LayoutChoice
from profiles.errors import InputError
from shardwright.analysis.layout_timeline import layout_timeline
from shardwright.reports.memory_picture import memory_picture
from shardwright.reports.picture import Picture
from shardwright.reports.timeline_picture import timeline_note, timeline_picture

_DRAWN = (
    "One replica, with the numbers of its ranks. The memory excludes short-lived tensors and the "
    "allocator's overhead."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPictures:
    """Pictures, and a note: their description, or the reason for having none."""

    pictures: tuple[Picture, ...] = ()
    note: str


def step_pictures(chosen: LayoutChoice) -> StepPictures:
    """The timeline and the memory of a plan's step."""
    try:
        step = layout_timeline(chosen)
    except InputError as error:
        return StepPictures(note=f"No picture of the step: {error}.")
    pictures = timeline_picture(step.events, (), all_in=""), memory_picture(step, None)
    return StepPictures(
        pictures=pictures, note=" ".join(filter(None, (_DRAWN, timeline_note(step))))
    )
