"""Tables of training steps of modules: what is trained, one row each, and what was measured of it.

A prediction is made from `ModuleRow` alone; `MeasuredModule` is for those who compare.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiles.errors import DocumentError
from profiles.published.table import Row, Table, count_cell, number_cell, read_table, text_cell

_TEXTS = ("id", "factory", "device", "precision", "memory_format", "framework", "optimizer")
MODULE_COLUMNS = (*_TEXTS, "arguments", "devices")
_MEASURED_COLUMNS = ("id", "family", "device", "precision", "step_time_s", "peak_memory_gib")
_OTHER_COLUMNS = ("oom_batch", "source", "batch", "quality", "pick", "notes")
_ALL_COLUMNS = frozenset((*MODULE_COLUMNS, *_MEASURED_COLUMNS, *_OTHER_COLUMNS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow:
    """A training step of a module on a device, as a table describes it.

    row        its place in the table, from 1
    factory    `package.module:function`, called with `arguments`
    devices    that train it side by side, each on a batch of its own
    precision, memory_format, framework, optimizer   in the table's words, "" where it is silent
    faults     cells that could not be read, as messages
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
    """What was measured of a row; None where nothing was.

    oom_batch  a batch that did not fit while the row's did
    """

    id: str
    family: str
    device: str
    precision: str
    step_time_s: float | None
    peak_memory_gib: float | None
    oom_batch: int | None


def read_modules(path: str | Path) -> tuple[ModuleRow, ...]:
    """The rows of a table of modules, in its order; a cell that cannot be read costs its own row a
    prediction (`faults`).

    Raises UnknownNameError for an unknown column, DocumentError for a missing file or column and
    for an id that is empty or there twice.
    """
    table = read_table(
        path,
        MODULE_COLUMNS,
        skipped=_ALL_COLUMNS - set(MODULE_COLUMNS),
        required=("id", "factory", "device"),
    )
    table.check_ids()
    return tuple(_row(table, row) for row in table.rows)


def _row(table: Table, row: Row) -> ModuleRow:
    cells = dict(zip(table.columns, map(text_cell, row.cells), strict=True))
    faults = []
    arguments: Any = {}
    devices = 1
    if cells["arguments"]:
        where = table.where(row, "arguments")
        try:
            arguments = json.loads(cells["arguments"])
        except ValueError as error:
            faults.append(f"{where}: is no JSON: {error}")
        if not isinstance(arguments, dict):
            faults.append(f"{where}: must be a JSON object of keywords, is {cells['arguments']}")
            arguments = {}
    try:
        devices = count_cell(cells["devices"], table.where(row, "devices"), least=1) or 1
    except DocumentError as error:
        faults.append(str(error))
    for column in ("factory", "device"):
        if not cells[column]:
            faults.append(f"{table.where(row, column)}: is empty")
    return ModuleRow(
        row=row.number,
        arguments=arguments,
        devices=devices,
        faults=tuple(faults),
        **{column: cells[column] for column in _TEXTS},
    )


def read_measured_modules(path: str | Path) -> tuple[MeasuredModule, ...]:
    """What was measured of the rows of a table of modules, in its order.

    Raises DocumentError for a figure that is no number of 0 or more.
    """
    columns = (*_MEASURED_COLUMNS, "oom_batch")
    table = read_table(path, columns, skipped=_ALL_COLUMNS - set(columns), required=("id",))
    found = []
    for row in table.rows:
        cells = dict(zip(table.columns, map(text_cell, row.cells), strict=True))
        step_time_s, peak_memory_gib = (
            number_cell(cells[column], table.where(row, column)) for column in columns[4:6]
        )
        found.append(
            MeasuredModule(
                step_time_s=step_time_s,
                peak_memory_gib=peak_memory_gib,
                oom_batch=count_cell(cells["oom_batch"], table.where(row, "oom_batch"), least=1),
                **{column: cells[column] for column in columns[:4]},
            )
        )
    return tuple(found)
