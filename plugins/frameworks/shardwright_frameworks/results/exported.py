"""Results of `export` and `check` in Python."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from shardwright.results.result import Result
from shardwright_frameworks.exports.agreement import Disagreement
from shardwright_frameworks.exports.export_plan import ExportFolder, unexpressed_data
from shardwright_frameworks.reports.export_report import check_words, export_words
from shardwright_frameworks.requests.checked_config import CheckedConfig


class ExportResult(Result, ExportFolder):
    """A plan in the files of a framework; one row per decision without an option there, with its
    predicted cost (shares of the step, bytes)."""

    __slots__ = ()

    def report(self) -> RenderableType:
        files = ", ".join(file.path for file in self.files)
        return Text(f"{len(self.files)} files: {files}\n{export_words(self)}\nstart: {self.start}")

    def table(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = unexpressed_data("", self.costs)["unexpressed"]
        return rows


class CheckResult(Result, CheckedConfig):
    """Comparison of a configuration with its plan; one row per setting: `same`, `different`, or
    `silent` if the configuration does not set it."""

    __slots__ = ()

    @property
    def different(self) -> tuple[Disagreement, ...]:
        """Different settings: planned value, value in the configuration, and its place."""
        return self.agreement.different

    @property
    def agrees(self) -> bool:
        """Whether all settings in the configuration equal the plan."""
        return not self.different

    def report(self) -> RenderableType:
        return Text(check_words(self))

    def table(self) -> list[dict[str, Any]]:
        agreement = self.agreement
        empty = {"planned": None, "found": None, "where": None}
        return [
            *(
                {
                    "setting": each.key,
                    "verdict": "different",
                    "planned": each.planned,
                    "found": each.found,
                    "where": each.where,
                }
                for each in agreement.different
            ),
            *({"setting": key, "verdict": "same", **empty} for key in agreement.same),
            *({"setting": key, "verdict": "silent", **empty} for key in agreement.silent),
        ]
