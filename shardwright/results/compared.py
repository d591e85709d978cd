"""What `compare`, `watch` and `diff` give in Python."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType

from shardwright.findings.comparison import Comparison, comparison_data
from shardwright.findings.log_comparison import LogComparison
from shardwright.findings.plan_diff import PlanDiff, plan_diff_data
from shardwright.reports import terminal
from shardwright.reports.frameworks.log_report import log_comparison_report
from shardwright.reports.plan_diff_report import plan_diff_report
from shardwright.results.shown import Shown


class ComparisonResult(Shown, Comparison):
    """A plan beside its run; a row per quantity, in its `unit`, errors as shares."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return terminal.comparison_report(self)

    def table(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = comparison_data(self)["rows"]
        return found


class LogComparisonResult(Shown, LogComparison):
    """A prediction beside a log; a row for the step, one per part where a profile tells, in
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


class DiffResult(Shown, PlanDiff):
    """Two plans beside each other; a row per number that either has, in its `unit`."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return plan_diff_report(self)

    def table(self) -> list[dict[str, Any]]:
        data = plan_diff_data(self)
        return [
            {"of": of, **change} for of in ("figures", "parts", "memory") for change in data[of]
        ]
