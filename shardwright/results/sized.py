"""Result of `size` in Python."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType

from planner.sizing.run_outlook import RunOutlook
from shardwright.analysis.size_json import size_json
from shardwright.reports.brief.brief_terminal import brief_report
from shardwright.reports.brief.size_brief import size_brief
from shardwright.reports.brief.size_table import SIZE_COLUMNS, size_rows
from shardwright.reports.sizing.size_summary import size_summary
from shardwright.requests.sizing.sized import Sized
from shardwright.results.result import Result


class SizeResult(Result, Sized):
    """Devices to rent for a run; one row per answer, the chosen first (columns of `size --csv`)."""

    __slots__ = ()

    @property
    def best(self) -> RunOutlook | None:
        """The chosen run; None if no listed devices keep the limits."""
        return self.answer.best

    def report(self) -> RenderableType:
        if self.best is not None:
            return size_summary(self)
        return brief_report(size_brief(size_json(self.question, self.answer, self.published)))

    def table(self) -> list[dict[str, Any]]:
        rows = size_rows(size_json(self.question, self.answer, self.published))
        return [{one.name: row.get(one.name) for one in SIZE_COLUMNS} for row in rows]
