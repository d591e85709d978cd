"""Layouts that ran out of memory or crashed, as the Ultra-Scale sweep lists them.

The table has only `model nodes micro_batch grad_accum dp pp tp zero_stage`; the rest is common to
the sweep and stands in profiles/data/published/architectures.toml with its source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiles.document import encode, read_document
from profiles.errors import DocumentError, UnknownNameError
from profiles.published.run import RUN_COLUMNS, PublishedRun
from profiles.published.table import Row, Table, count_cell, read_table

FAILED_COLUMNS = ("model", "nodes", "micro_batch", "grad_accum", "dp", "pp", "tp", "zero_stage")
ARCHITECTURES = Path(__file__).parents[1] / "data" / "published" / "architectures.toml"
ARCHITECTURES_SCHEMA = "shardwright/architectures@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model of the sweep by its figures; names as in `PublishedRun`."""

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
    """What all layouts of the sweep share, and its models by the name that the table uses."""

    source: str
    date: str
    device: str
    devices_per_node: int
    seq_len: int
    precision: str
    framework: str
    architectures: Mapping[str, Architecture]


def is_failed_table(header: Sequence[str]) -> bool:
    """Whether the header is that of a table of failed layouts: it has no ids, but nodes."""
    return "id" not in header and "nodes" in header and "grad_accum" in header


def read_failed_layouts(path: str | Path, *, lenient: bool = False) -> tuple[PublishedRun, ...]:
    """The layouts as runs with the ids `failed-1`, `failed-2`, ... in the table's order.

    Raises UnknownNameError for an unknown column or model, DocumentError for a cell that is empty
    or no whole number and for degrees that do not multiply to the devices; with `lenient` what is
    wrong with a row is kept in its run's `faults`.
    """
    sweep = read_document(ARCHITECTURES, Sweep, schema=ARCHITECTURES_SCHEMA)
    table = read_table(path, FAILED_COLUMNS, required=FAILED_COLUMNS)
    return tuple(_run_or_fault(table, row, sweep, lenient) for row in table.rows)


def _run_or_fault(table: Table, row: Row, sweep: Sweep, lenient: bool) -> PublishedRun:
    try:
        return _run(table, row, sweep)
    except (DocumentError, UnknownNameError) as error:
        if not lenient:
            raise
        return PublishedRun(row=row.number, id=f"failed-{row.number}", faults=(str(error),))


def _run(table: Table, row: Row, sweep: Sweep) -> PublishedRun:
    cells = dict(zip(table.columns, row.cells, strict=True))
    model = sweep.architectures.get(cells["model"])
    if model is None:
        raise UnknownNameError(
            "model", cells["model"], sweep.architectures, where=table.where(row, "model")
        )
    count = {
        column: _count(table, row, column, cells[column], least=column != "zero_stage")
        for column in FAILED_COLUMNS[1:]
    }
    devices = count["nodes"] * sweep.devices_per_node
    if count["dp"] * count["tp"] * count["pp"] != devices:
        raise DocumentError(
            f"{table.where(row, 'dp')}: dp={count['dp']} x tp={count['tp']} x pp={count['pp']} is "
            f"not nodes={count['nodes']} x {sweep.devices_per_node} devices = {devices}"
        )
    said = {**encode(sweep), **encode(model), **count}
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
        **{name: value for name, value in said.items() if name in RUN_COLUMNS},
    )


def _count(table: Table, row: Row, column: str, text: str, *, least: int) -> int:
    where = table.where(row, column)
    number = count_cell(text, where, least=least)
    if number is None:
        raise DocumentError(f"{where}: the cell is empty; a layout needs every number")
    return number
