"""`Shown`: all that a page says of an answer, before it is drawn."""

from __future__ import annotations

from dataclasses import dataclass

from planner.layout.layout_answer import LayoutChoice
from shardwright.reports.brief.brief import Brief


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A report with what stands beside it.

    chosen  the plan whose step is drawn, None for none
    told    remarks beside the answer
    fault   that nothing fits, as the command line says it; "" where something does
    """

    brief: Brief
    chosen: LayoutChoice | None = None
    told: tuple[str, ...] = ()
    fault: str = ""
