"""`Measured`: what a source measured of a published run; to compare with, never to predict from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from profiles.published.run import MEASURED_COLUMNS, RUN_COLUMNS
from profiles.published.table import number_cell, read_table, text_cell

_COLUMNS = (
    "id",
    "step_time_s",
    "step_time_kind",
    "peak_memory_gib",
    "peak_memory_kind",
    "quality",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A run's measured figures; None where the source has none.

    step_time_s        seconds per optimizer step
    step_time_kind     `published`, or `from tokens/s`
    peak_memory_gib    the highest memory of a device, in GiB
    peak_memory_kind   what that is a peak of, in the source's words
    quality            the transcriber's grade, A is best
    """

    id: str
    step_time_s: float | None = None
    step_time_kind: str = ""
    peak_memory_gib: float | None = None
    peak_memory_kind: str = ""
    quality: str = ""


def read_measured(path: str | Path) -> tuple[Measured, ...]:
    """The measured columns of a table of runs, in its order.

    A table without them reads as silence. Raises UnknownNameError for an unknown column and
    DocumentError for a cell that is not a number of 0 or more.
    """
    skipped = frozenset((*RUN_COLUMNS, *MEASURED_COLUMNS)) - frozenset(_COLUMNS)
    table = read_table(path, _COLUMNS, skipped=skipped, required=("id",))
    found = []
    for row in table.rows:
        cells = dict(zip(table.columns, row.cells, strict=True))
        found.append(
            Measured(
                id=cells["id"],
                step_time_s=number_cell(cells["step_time_s"], table.where(row, "step_time_s")),
                step_time_kind=text_cell(cells["step_time_kind"]),
                peak_memory_gib=number_cell(
                    cells["peak_memory_gib"], table.where(row, "peak_memory_gib")
                ),
                peak_memory_kind=text_cell(cells["peak_memory_kind"]),
                quality=text_cell(cells["quality"]),
            )
        )
    return tuple(found)
