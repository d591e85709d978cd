"""`RankedChanges`: single changes of an imported run, sorted by predicted gain."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.runs.predict_runs import PredictedRow
from shardwright_frameworks.changes.flags import flag_of, values_of
from shardwright_frameworks.changes.ranked_changes import PricedChange, ranked_changes
from shardwright_frameworks.imported_run import ImportedRun
from shardwright_frameworks.requests.table_row import imported_row, predicted_import

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedChanges:
    """The imported run, its prediction, and the changes, largest gain first."""

    imported: ImportedRun
    prediction: PredictedRow
    changes: tuple[PricedChange, ...]


def changes_of(
    run: ImportedRun, path: Path, on: str, *, precisions: tuple[str, ...] = ()
) -> RankedChanges:
    """The changes of an imported run on the devices `on`.

    precisions  allowed new precisions

    Raises InputError if the run cannot be predicted.
    """
    made = predicted_import(imported_row(run, path, on))
    assert made.run is not None
    return RankedChanges(
        imported=run, prediction=made, changes=ranked_changes(made.run, precisions=precisions)
    )


def change_data(run: ImportedRun, priced: PricedChange) -> dict[str, Any]:
    """A change as plain values, with the option names of the run's framework."""
    change = priced.change
    return {
        "setting": change.setting,
        "flag": flag_of(run.framework, change),
        "old": change.old,
        "new": change.new,
        "written": " -> ".join(values_of(run.framework, change)),
        "where": run.options.get(change.setting, ""),
        "step_time_s": priced.step_time_s,
        "gain": priced.gain,
        "needed_gib": None if priced.needed_bytes is None else priced.needed_bytes / _GIB,
    }
