"""`PredictedRun`: one row of a batch prediction, and how to read a file of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from profiles.errors import DocumentError
from profiles.published.table import flag_cell, number_cell, read_table

PREDICTED_COLUMNS = (
    "id",
    "step_time_s",
    "step_time_low_s",
    "step_time_high_s",
    "peak_memory_gib",
    "peak_memory_low_gib",
    "peak_memory_high_gib",
    "fits",
    "status",
    "defaults",
    "memory_left_gib",
    "out_of_memory_probability",
)
OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRun:
    """What was predicted of the run `id`; None where nothing was.

    The low and high values bound a 90 % interval; `status` is `ok` or `unsupported: why`.
    `memory_left_gib` is what the device has beyond what the run needs to run at all (`fits` where
    that is not negative), `out_of_memory_probability` that it needs more than the device has.
    """

    id: str
    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    peak_memory_gib: float | None = None
    peak_memory_low_gib: float | None = None
    peak_memory_high_gib: float | None = None
    fits: bool | None = None
    status: str = OK
    defaults: str = ""
    memory_left_gib: float | None = None
    out_of_memory_probability: float | None = None


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
