"""Reading what `predict --runs` wrote."""

from __future__ import annotations

from pathlib import Path

from profiles.csv_table import flag_cell, number_cell, read_table
from profiles.errors import DocumentError
from shardwright.commands.tables.predict_runs import PREDICTED_COLUMNS, PredictedRun


def read_predicted(path: str | Path) -> tuple[PredictedRun, ...]:
    """The rows of a prediction file, in its order.

    Raises UnknownNameError for an unknown column and DocumentError for a cell that is no number
    of 0 or more, a `fits` that is not 1 or 0, or an id that is empty.
    """
    table = read_table(path, PREDICTED_COLUMNS, required=("id", "step_time_s"))
    found = []
    for row in table.rows:
        cells = dict(zip(table.columns, row.cells, strict=True))
        if not cells["id"]:
            raise DocumentError(f"{table.where(row, 'id')}: the id is empty; every row needs one")
        numbers = {
            column: number_cell(cells[column], table.where(row, column))
            for column in PREDICTED_COLUMNS[1:7]
        }
        found.append(
            PredictedRun(
                id=cells["id"],
                step_time_s=numbers["step_time_s"],
                step_time_low_s=numbers["step_time_low_s"],
                step_time_high_s=numbers["step_time_high_s"],
                peak_memory_gib=numbers["peak_memory_gib"],
                peak_memory_low_gib=numbers["peak_memory_low_gib"],
                peak_memory_high_gib=numbers["peak_memory_high_gib"],
                fits=flag_cell(cells["fits"], table.where(row, "fits")),
                status=cells["status"],
                defaults=cells["defaults"],
            )
        )
    return tuple(found)
