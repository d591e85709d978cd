"""Results of `compare_log` and `watch` in Python."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType

from shardwright.results.result import Result
from shardwright_frameworks.analysis.log_comparison import LogComparison
from shardwright_frameworks.reports.log_report import log_comparison_report


class LogComparisonResult(Result, LogComparison):
    """Comparison of a prediction with a log; a row for the step and, with a profile, one per part,
    in seconds."""

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
