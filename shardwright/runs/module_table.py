"""Tables of training steps of modules, one per row, with their measurements.

Predictions use only `ModuleRow`; `MeasuredModule` is for the comparison.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from profiles.csv_table import Row, Table, count_cell, number_cell, read_table
from profiles.errors import DocumentError

_TEXTS = ("id", "factory", "device", "precision", "memory_format", "framework", "optimizer")
MODULE_COLUMNS = (*_TEXTS, "arguments", "devices")
_MEASURED_COLUMNS = ("id", "family", "device", "precision", "step_time_s", "peak_memory_gib")
_OTHER_COLUMNS = ("oom_batch", "source", "batch", "quality", "pick", "notes")
_ALL_COLUMNS = frozenset((*MODULE_COLUMNS, *_MEASURED_COLUMNS, *_OTHER_COLUMNS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow:
    """A training step of a module on a device, as a table describes it.

    row        index in the table, from 1
    factory    `package.module:function`, called with `arguments`
    devices    data-parallel devices, each with a separate batch
    precision, memory_format, framework, optimizer   in the table's words, "" if not stated
    faults     messages about unreadable cells
    """

    row: int
    id: str
    factory: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    device: str = ""
    devices: int = 1
    precision: str = ""
    memory_format: str = ""
    framework: str = ""
    optimizer: str = ""
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredModule:
    """The measurements of a row; None if not measured.

    oom_batch  a batch that did not fit, unlike the row's
    """

    id: str
    family: str
    device: str
    precision: str
    step_time_s: float | None
    peak_memory_gib: float | None
    oom_batch: int | None


def read_modules(path: str | Path) -> tuple[ModuleRow, ...]:
    """The rows of a table of modules, in its order; rows with unreadable cells have `faults`.

    Raises UnknownNameError for an unknown column, DocumentError for a missing file or column and
    for an empty or repeated id.
    """
    table = read_table(
        path,
        MODULE_COLUMNS,
        skipped=_ALL_COLUMNS - set(MODULE_COLUMNS),
        required=("id", "factory", "device"),
    )
    table.check_ids()
    return tuple(_row(table, row) for row in table.rows)


def _arguments(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise DocumentError(f"{where}: is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise DocumentError(f"{where}: must be a JSON object of keywords, is {text}")
    return found


_positive = partial(count_cell, least=1)


def _row(table: Table, row: Row) -> ModuleRow:
    cells = table.texts(row)
    faults: list[str] = []
    arguments = table.parsed(row, "arguments", _arguments, faults)
    devices = table.parsed(row, "devices", _positive, faults)
    for column in ("factory", "device"):
        if not cells[column]:
            faults.append(f"{table.where(row, column)}: is empty")
    return ModuleRow(
        row=row.number,
        arguments=arguments or {},
        devices=devices or 1,
        faults=tuple(faults),
        **{column: cells[column] for column in _TEXTS},
    )


def read_measured_modules(path: str | Path) -> tuple[MeasuredModule, ...]:
    """The measurements in a table of modules, in its order.

    Raises DocumentError for a cell that is no number of 0 or more.
    """
    columns = (*_MEASURED_COLUMNS, "oom_batch")
    table = read_table(path, columns, skipped=_ALL_COLUMNS - set(columns), required=("id",))
    found = []
    for row in table.rows:
        cells = table.texts(row)
        step_time_s, peak_memory_gib = (
            number_cell(cells[column], table.where(row, column)) for column in columns[4:6]
        )
        found.append(
            MeasuredModule(
                step_time_s=step_time_s,
                peak_memory_gib=peak_memory_gib,
                oom_batch=_positive(cells["oom_batch"], table.where(row, "oom_batch")),
                **{column: cells[column] for column in columns[:4]},
            )
        )
    return tuple(found)
