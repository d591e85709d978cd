"""`PageAnswer`: the content of an answer on a page."""

from __future__ import annotations

from dataclasses import dataclass

from planner.layout.layout_answer import LayoutChoice
from shardwright.reports.brief.brief import Brief


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAnswer:
    """A report and its additions.

    chosen  the plan for the pictures of the step, None without one
    notes   notes on the answer
    fault   error message of the command line if nothing fits, otherwise ""
    """

    brief: Brief
    chosen: LayoutChoice | None = None
    notes: tuple[str, ...] = ()
    fault: str = ""
