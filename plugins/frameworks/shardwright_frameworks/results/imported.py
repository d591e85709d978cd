"""What reading the files of other frameworks gives in Python: configurations, logs, changes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from profiles.errors import DocumentError
from shardwright.asking.imported_run import ImportedRun, imported_json
from shardwright.results.shown import Shown, flat
from shardwright_frameworks.analysis.ranked_changes import RankedChanges, change_data
from shardwright_frameworks.logs.training_log import TrainingLog
from shardwright_frameworks.reports.imported_report import changes_report, imported_report
from shardwright_frameworks.reports.log_report import opened_log_report
from shardwright_frameworks.traces.opened_log import OpenedLog, opened_log_data

# Keys of an import that tell about the reading, not about the run.
_ABOUT = frozenset(
    {
        *("schema", "options", "derived", "defaults", "contradictions", "overridden"),
        *("unknown", "unresolved", "files", "runs"),
    }
)


class ImportResult(Shown, ImportedRun):
    """A configuration as a run; a row per setting: what the files say and where, else what follows,
    else the framework's default and its source."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return imported_report(self)

    def table(self) -> list[dict[str, Any]]:
        said = {name: value for name, value in imported_json(self).items() if name not in _ABOUT}
        rows = []
        for key, value in flat(said).items():
            default = self.defaults.get(key)
            where = self.options.get(key) or self.derived.get(key, "")
            silent = value is None and default is not None
            rows.append(
                {
                    "setting": key,
                    "value": default.value if silent and default is not None else value,
                    "said_by": default.source if silent and default is not None else where,
                    "default": silent,
                }
            )
        return rows


class ChangesResult(Shown, RankedChanges):
    """Single changes of an imported run, the largest gain first; a row per change."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return changes_report(self.imported, self.prediction, self.changes)

    def table(self) -> list[dict[str, Any]]:
        return [change_data(self.imported, each) for each in self.changes]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogResult(Shown):
    """A file that a run left behind: a training log, a profile, a benchmark, memory snapshots.

    found   what was read; a row of the log, of each device of a profile, of each size of nccl-tests
    """

    path: Path
    found: OpenedLog

    @property
    def training(self) -> TrainingLog:
        """The training log; raises DocumentError where the file is another kind."""
        if not isinstance(self.found, TrainingLog):
            raise DocumentError(f"{self.path}: is a profile or a benchmark, no log of steps")
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
