"""Tables of published runs: a `PublishedRun` per row of a CSV file, and a `Measured` with the row's
measurements, which are only compared with predictions.

A table of failed layouts (out of memory or crashed, as in the Ultra-Scale sweep) has only the
columns `model nodes micro_batch grad_accum dp pp tp zero_stage`; all other values are common to the
sweep and come from profiles/data/published/architectures.toml, with their source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from profiles.csv_table import (
    Row,
    Table,
    count_cell,
    flag_cell,
    number_cell,
    read_header,
    read_table,
    text_cell,
)
from profiles.document import encode, read_document
from profiles.errors import DocumentError, UnknownNameError
from shardwright.runs.run import MEASURED_COLUMNS, RUN_COLUMNS, PublishedRun

FAILED_COLUMNS = ("model", "nodes", "micro_batch", "grad_accum", "dp", "pp", "tp", "zero_stage")
ARCHITECTURES = Path(__file__).parents[2] / "profiles" / "data" / "published" / "architectures.toml"
ARCHITECTURES_SCHEMA = "shardwright/architectures@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model of the sweep; names as in `PublishedRun`."""

    model: str
    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    gated_mlp: bool
    tied_embeddings: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Values common to all layouts of the sweep, and its models by their names in the table."""

    source: str
    date: str
    device: str
    devices_per_node: int
    seq_len: int
    precision: str
    framework: str
    architectures: Mapping[str, Architecture]


def read_failed_layouts(path: str | Path, *, lenient: bool = False) -> tuple[PublishedRun, ...]:
    """The layouts as runs with the ids `failed-1`, `failed-2`, ... in the table's order.

    Raises UnknownNameError for an unknown column or model, DocumentError for a cell that is no
    integer and for degrees that do not multiply to the devices; with `lenient` the message is added
    to the run's `faults` instead.
    """
    sweep = read_document(ARCHITECTURES, Sweep, schema=ARCHITECTURES_SCHEMA)
    table = read_table(path, FAILED_COLUMNS, required=FAILED_COLUMNS)
    found = []
    for row in table.rows:
        try:
            found.append(_failed_run(table, row, sweep))
        except (DocumentError, UnknownNameError) as error:
            if not lenient:
                raise
            name = f"failed-{row.number}"
            found.append(PublishedRun(row=row.number, id=name, faults=(str(error),)))
    return tuple(found)


def _failed_run(table: Table, row: Row, sweep: Sweep) -> PublishedRun:
    cells = table.texts(row)
    model = sweep.architectures.get(cells["model"])
    if model is None:
        raise UnknownNameError(
            "model", cells["model"], sweep.architectures, where=table.where(row, "model")
        )
    count = {}
    for column in FAILED_COLUMNS[1:]:
        where = table.where(row, column)
        number = count_cell(cells[column], where, least=column != "zero_stage")
        if number is None:
            raise DocumentError(f"{where}: the cell is empty; a layout needs every number")
        count[column] = number
    devices = count["nodes"] * sweep.devices_per_node
    if count["dp"] * count["tp"] * count["pp"] != devices:
        raise DocumentError(
            f"{table.where(row, 'dp')}: dp={count['dp']} x tp={count['tp']} x pp={count['pp']} is "
            f"not nodes={count['nodes']} x {sweep.devices_per_node} devices = {devices}"
        )
    known = {**encode(sweep), **encode(model), **count}
    return PublishedRun(
        row=row.number,
        id=f"failed-{row.number}",
        family="dense",
        num_devices=devices,
        vpp=1,
        cp=1,
        ep=1,
        global_batch=count["dp"] * count["micro_batch"] * count["grad_accum"],
        schedule="1f1b" if count["pp"] > 1 else "none",
        ran=False,
        **{name: value for name, value in known.items() if name in RUN_COLUMNS},
    )


# Many tables describe a dense model by 0 experts of width 0.
_MAY_BE_ZERO = (
    *("num_experts", "top_k", "moe_ffn_size", "num_shared_experts", "first_dense_layers"),
    *("zero_stage", "sliding_window", "window_layers", "mtp_layers", "recompute_layers"),
    "wide_layers",
)
_LAST_ZERO_STAGE = 3
# Column -> type of its field: `str`, `bool`, `float` or `int`.
_KINDS = {field.name: str(field.type).removesuffix(" | None") for field in fields(PublishedRun)}
_FAMILIES = ("", "dense", "moe", "lora")
# Number of chunks in the Zero Bubble paper's table 4: as many as layers.
_ONE_LAYER_PER_CHUNK = "max (1 layer per chunk)"


def read_runs(path: str | Path, *, lenient: bool = False) -> tuple[PublishedRun, ...]:
    """The runs of a CSV file, in its order; a table of failed layouts is recognized by its header.

    With `lenient`, unreadable cells are empty and listed in the run's `faults`. Raises
    UnknownNameError for an unknown column, DocumentError for a missing `id` or `num_layers` column,
    an empty or repeated id and (unless `lenient`) an unreadable cell.
    """
    header = read_header(path)
    if "id" not in header and {"nodes", "grad_accum"} <= set(header):
        return read_failed_layouts(path, lenient=lenient)
    table = read_table(path, RUN_COLUMNS, skipped=MEASURED_COLUMNS, required=("id", "num_layers"))
    table.check_ids()
    return tuple(_run(table, row, lenient) for row in table.rows)


def _run(table: Table, row: Row, lenient: bool) -> PublishedRun:
    values: dict[str, Any] = {}
    faults: list[str] = []
    for column, text in zip(table.columns, row.cells, strict=True):
        try:
            values[column] = _cell(column, text, table.where(row, column))
        except DocumentError as error:
            if not lenient:
                raise
            faults.append(str(error))
    if values.get("vpp") == _ONE_LAYER_PER_CHUNK:
        values["vpp"] = _chunks_of_one_layer(values.get("num_layers"), values.get("pp"))
    return PublishedRun(row=row.number, faults=tuple(faults), **values)


def _cell(column: str, text: str, where: str) -> str | int | float | bool | None:
    if column == "family":
        if text_cell(text).lower() not in _FAMILIES:
            raise DocumentError(f"{where}: {text!r} is not a family; use dense, moe or lora")
        return text_cell(text).lower()
    if _KINDS[column] == "str":
        return text_cell(text)
    if _KINDS[column] == "bool":
        return flag_cell(text, where)
    if _KINDS[column] == "float":
        return number_cell(text, where)
    if column == "vpp" and text == _ONE_LAYER_PER_CHUNK:
        return text
    count = count_cell(text, where, least=0 if column in _MAY_BE_ZERO else 1)
    if column == "zero_stage" and count is not None and count > _LAST_ZERO_STAGE:
        raise DocumentError(f"{where}: {text!r} is not a ZeRO stage; use 0, 1, 2 or 3")
    return count


def _chunks_of_one_layer(num_layers: int | None, pp: int | None) -> int | None:
    """Chunks per rank of one layer each, rounded up: such models have k * pp - 2 layers, embedding
    and head count as one each (Zero Bubble README, "Notices",
    https://github.com/sail-sg/zero-bubble-pipeline-parallelism)."""
    return None if num_layers is None or pp is None else math.ceil(num_layers / pp)


_FIGURES = ("step_time_s", "peak_memory_gib")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A run's measurements; None if not published.

    step_time_s        seconds per optimizer step
    peak_memory_gib    highest memory of a device, in GiB
    quality            completeness of the source, A (complete) first, "" if not graded
    """

    id: str
    step_time_s: float | None = None
    peak_memory_gib: float | None = None
    quality: str = ""


def read_measured(path: str | Path) -> tuple[Measured, ...]:
    """The measured columns of a table of runs, in its order; missing columns read as empty.

    Raises UnknownNameError for an unknown column and DocumentError for a cell that is no number of
    0 or more.
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
