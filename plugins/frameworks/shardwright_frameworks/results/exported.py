"""What `export` and `check` give in Python."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from shardwright.results.shown import Shown
from shardwright_frameworks.exports.agreement import Disagreement
from shardwright_frameworks.exports.export_plan import ExportFolder, unexpressed_data
from shardwright_frameworks.reports.export_report import check_words, export_words
from shardwright_frameworks.requests.checked_config import CheckedConfig


class ExportResult(Shown, ExportFolder):
    """A plan in the files of a framework; a row per decision that they cannot say, with its cost
    by our prediction (shares of the step, bytes)."""

    __slots__ = ()

    def report(self) -> RenderableType:
        files = ", ".join(file.path for file in self.files)
        return Text(f"{len(self.files)} files: {files}\n{export_words(self)}\nstart: {self.start}")

    def table(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = unexpressed_data("", self.costs)["unexpressed"]
        return found


class CheckResult(Shown, CheckedConfig):
    """A configuration beside its plan; a row per setting: `same`, `different` or `silent`."""

    __slots__ = ()

    @property
    def different(self) -> tuple[Disagreement, ...]:
        """The settings that differ: planned, found, and where."""
        return self.agreement.different

    @property
    def agrees(self) -> bool:
        """Whether nothing that the configuration says differs from the plan."""
        return not self.different

    def report(self) -> RenderableType:
        return Text(check_words(self))

    def table(self) -> list[dict[str, Any]]:
        found = self.agreement
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
                for each in found.different
            ),
            *({"setting": key, "verdict": "same", **empty} for key in found.same),
            *({"setting": key, "verdict": "silent", **empty} for key in found.silent),
        ]
