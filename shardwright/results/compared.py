"""Results of `compare` and `diff` in Python."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType

from shardwright.analysis.comparison import Comparison, comparison_data
from shardwright.analysis.plan_diff import PlanDiff, plan_diff_data
from shardwright.reports.brief.brief_terminal import section_report
from shardwright.reports.brief.comparison_section import comparison_section, diff_section
from shardwright.results.result import Result


class ComparisonResult(Result, Comparison):
    """Comparison of a plan with its run; one row per quantity, in its `unit`, errors as shares."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return section_report(comparison_section(self))

    def table(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = comparison_data(self)["rows"]
        return rows


class DiffResult(Result, PlanDiff):
    """Two plans beside each other; a row per number that either has, in its `unit`."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return section_report(diff_section(self))

    def table(self) -> list[dict[str, Any]]:
        data = plan_diff_data(self)
        return [
            {"of": of, **change} for of in ("figures", "parts", "memory") for change in data[of]
        ]
