"""Results of `compare`, `watch` and `diff` in Python."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType

from shardwright.findings.comparison import Comparison, comparison_data
from shardwright.findings.log_comparison import LogComparison
from shardwright.findings.plan_diff import PlanDiff, plan_diff_data
from shardwright.reports import terminal
from shardwright.reports.frameworks.log_report import log_comparison_report
from shardwright.reports.plan_diff_report import plan_diff_report
from shardwright.results.result import Result


class ComparisonResult(Result, Comparison):
    """Comparison of a plan with its run; one row per quantity, in its `unit`, errors as shares."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return terminal.comparison_report(self)

    def table(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = comparison_data(self)["rows"]
        return rows


class LogComparisonResult(Result, LogComparison):
    """Comparison of a prediction with a log; one row for the step and one per part of a profile, in
    seconds."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return log_comparison_report(self)

    def table(self) -> list[dict[str, Any]]:
        step = self.step_time_s
        return [
            {
                "part": "step",
                "predicted_s": step.value,
                "predicted_low_s": step.low,
                "predicted_high_s": step.high,
                "measured_s": self.measured_s,
            },
            *(
                {
                    "part": row.name,
                    "predicted_s": row.predicted_s,
                    "predicted_low_s": None,
                    "predicted_high_s": None,
                    "measured_s": row.measured_s,
                }
                for row in self.parts
            ),
        ]


class DiffResult(Result, PlanDiff):
    """Difference of two plans; one row per number, in its `unit`."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return plan_diff_report(self)

    def table(self) -> list[dict[str, Any]]:
        data = plan_diff_data(self)
        return [
            {"of": of, **change} for of in ("figures", "parts", "memory") for change in data[of]
        ]
