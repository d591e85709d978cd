"""`Shown`: all that a page says of an answer, before it is drawn."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.reports.brief.brief import Brief
from shardwright.reports.picture import Picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A report, with pictures of the step and remarks.

    step    pictures of the chosen plan's step;  step_note  what they are, or why there are none
    told    remarks beside the answer
    fault   that nothing fits, as the command line says it; "" where something does
    """

    brief: Brief
    step: tuple[Picture, ...] = ()
    step_note: str = ""
    told: tuple[str, ...] = ()
    fault: str = ""
