"""Predictions of earlier releases, made before the measurements were known (prospective.csv)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evidence.compared_run import ComparedRun
from profiles.csv_table import number_cell, read_table
from shardwright.commands.tables.predict_runs import OK, PredictedRun
from shardwright.runs.run import PublishedRun
from shardwright.runs.run_table import Measured

_PREDICTED = (
    "step_time_s",
    "step_time_low_s",
    "step_time_high_s",
    "peak_memory_gib",
    "peak_memory_low_gib",
    "peak_memory_high_gib",
)
_TEXT = ("id", "release", "predicted_on")
_COLUMNS = (*_TEXT, "measured_step_time_s", "measured_peak_memory_gib", *_PREDICTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A release's predictions next to what was measured; `predicted_on` is its last date.

    The rows know their run's id only.
    """

    name: str
    predicted_on: str
    rows: tuple[ComparedRun, ...]


def read_releases(path: str | Path) -> tuple[Release, ...]:
    """The releases of a table of prospective predictions, by date.

    Raises UnknownNameError for an unknown column and DocumentError for a missing one or a cell that
    is not a number.
    """
    table = read_table(path, _COLUMNS, required=_COLUMNS)
    rows: dict[str, list[ComparedRun]] = {}
    dates: dict[str, str] = {}
    for row in table.rows:
        run_id, release, date = row.cells[: len(_TEXT)]
        values = [
            number_cell(text, table.where(row, column))
            for column, text in zip(_COLUMNS[len(_TEXT) :], row.cells[len(_TEXT) :], strict=True)
        ]
        step, peak, *predicted = values
        status = OK if predicted[0] else "missing: not predicted"
        made: Any = dict(zip(_PREDICTED, predicted, strict=True))
        rows.setdefault(release, []).append(
            ComparedRun(
                run=PublishedRun(row=row.number, id=run_id),
                measured=Measured(id=run_id, step_time_s=step, peak_memory_gib=peak),
                predicted=PredictedRun(id=run_id, status=status, **made),
            )
        )
        dates[release] = max(date, dates.get(release, ""))
    return tuple(
        Release(name=name, predicted_on=dates[name], rows=tuple(rows[name]))
        for name in sorted(rows, key=lambda name: (dates[name], name))
    )
