"""Results of reading other frameworks' files in Python: configurations, logs, changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from profiles.errors import DocumentError
from shardwright.results.result import Result
from shardwright_frameworks.analysis.ranked_changes import RankedChanges, change_data
from shardwright_frameworks.imported_run import ImportedRun, imported_json
from shardwright_frameworks.logs.training_log import TrainingLog
from shardwright_frameworks.reports.imported_report import changes_report, imported_report
from shardwright_frameworks.reports.log_report import opened_log_report
from shardwright_frameworks.traces.opened_log import OpenedLog, opened_log_data

# Keys of an import that describe the reading, not the run.
_ABOUT = frozenset(
    {
        *("schema", "options", "derived", "defaults", "contradictions", "overridden"),
        *("unknown", "unresolved", "files", "runs"),
    }
)


class ImportResult(Result, ImportedRun):
    """A configuration as a run; one row per setting, with its value and its source (a place in the
    files, a derivation, or the framework's default)."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return imported_report(self)

    def table(self) -> list[dict[str, Any]]:
        data = {name: value for name, value in imported_json(self).items() if name not in _ABOUT}
        rows = []
        for key, value in flat(data).items():
            default = self.defaults.get(key)
            where = self.options.get(key) or self.derived.get(key, "")
            missing = value is None and default is not None
            rows.append(
                {
                    "setting": key,
                    "value": default.value if missing and default is not None else value,
                    "said_by": default.source if missing and default is not None else where,
                    "default": missing,
                }
            )
        return rows


class ChangesResult(Result, RankedChanges):
    """Single changes of an imported run, largest gain first; one row per change."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return changes_report(self.imported, self.prediction, self.changes)

    def table(self) -> list[dict[str, Any]]:
        return [change_data(self.imported, each) for each in self.changes]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogResult(Result):
    """An output file of a run: a training log, profile, benchmark or memory snapshots.

    found   the content; one row for a log, one per device of a profile, one per size of nccl-tests
    """

    path: Path
    found: OpenedLog

    @property
    def training(self) -> TrainingLog:
        """The training log; raises DocumentError for a file of another kind."""
        if not isinstance(self.found, TrainingLog):
            raise DocumentError(f"{self.path}: is a profile or a benchmark, not a training log")
        return self.found

    def report(self) -> RenderableType:
        return opened_log_report(self.found)

    def table(self) -> list[dict[str, Any]]:
        data = opened_log_data(self.found, self.path)
        if isinstance(self.found, TrainingLog):
            return [flat(data)]
        if "curves" in data:
            return [
                {"operation": curve["operation"], "devices": curve["devices"], **point}
                for curve in data["curves"]
                for point in curve["points"]
            ]
        return [dict(each) for each in data["devices"]]


def flat(data: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested mappings as one mapping, with keys joined by dots; lists are omitted."""
    items: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            items |= flat(value, f"{before}{name}.")
        elif not isinstance(value, (list, tuple)):
            items[f"{before}{name}"] = value
    return items
