"""`Measured`: what a source measured of a published run; to compare with, never to predict from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from profiles.published.run import MEASURED_COLUMNS, RUN_COLUMNS
from profiles.published.table import number_cell, read_table

_FIGURES = ("step_time_s", "peak_memory_gib")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A run's measured figures; None where the source has none.

    step_time_s        seconds per optimizer step
    peak_memory_gib    the highest memory of a device, in GiB
    quality            how much of the run the source states, A (all) first, "" where not graded
    """

    id: str
    step_time_s: float | None = None
    peak_memory_gib: float | None = None
    quality: str = ""


def read_measured(path: str | Path) -> tuple[Measured, ...]:
    """The measured columns of a table of runs, in its order.

    A table without them reads as silence. Raises UnknownNameError for an unknown column and
    DocumentError for a cell that is not a number of 0 or more.
    """
    skipped = frozenset((*RUN_COLUMNS, *MEASURED_COLUMNS))
    table = read_table(path, ("id", *_FIGURES, "quality"), skipped=skipped, required=("id",))
    return tuple(
        Measured(
            id=row.cells[0],
            quality=row.cells[-1],
            **{
                column: number_cell(text, table.where(row, column))
                for column, text in zip(_FIGURES, row.cells[1:-1], strict=True)
            },
        )
        for row in table.rows
    )
