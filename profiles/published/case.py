"""`PublishedCase`: what a source says about a whole training run, and nothing of what it took.

A prediction is made from these values alone: totals (days, device-hours, energy, dollars, carbon),
throughput, utilisation and what is derived from them are skipped while reading, and so are notes,
which print them. Of the columns that say what the published hours and energy count only these words
are read: whether downtime is inside (`counts_downtime`), and hosts and cooling (`counts_site`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from profiles.errors import DocumentError
from profiles.published.table import Row, Table, number_cell, read_table, text_cell

# Columns of a table of whole runs that no prediction may see.
MEASURED_CASE_COLUMNS = (
    *("wall_days", "accel_hours", "throughput_reported", "mfu_reported_pct", "hfu_reported_pct"),
    *("energy_mwh", "carbon_t", "cost_usd", "implied_mfu_6N_pct", "implied_mfu_palm_pct"),
    *("implied_over_reported", "count_days_over_hours", "implied_W_per_accel"),
    *("implied_kg_per_kwh_vs_TDP", "implied_usd_per_h", "failures_goodput", "notes", "where"),
    *("evidence", "predictable", "carbon_kg_per_kwh", "flag"),
)
_TEXTS = (
    *("id", "model", "org", "kind", "scope", "ffn", "kv_heads", "vocab", "experts", "seq_len"),
    *("batch_ramp", "precision", "accel", "interconnect", "tp", "pp", "dp", "cp", "ep", "zero"),
    *("hours_kind", "energy_basis", "source_url"),
)
_NUMBERS = (
    *("params_total_b", "params_active_b", "layers", "hidden", "heads", "topk", "tokens_b"),
    *("global_batch_tokens_m", "accel_count", "pue", "cost_rate_usd_per_h"),
)
CASE_COLUMNS = (*_TEXTS, *_NUMBERS)
# Words that say that the hours are those of the steady step, and nothing that interrupted it.
_STEADY = re.compile(
    r"no downtime|without downtime|steady rate x tokens|iteration time|computed from logs|"
    r"not billed time",
    re.IGNORECASE,
)
# Words that say that the energy is that of the boards alone.
_BOARDS = re.compile(r"no PUE|without PUE", re.IGNORECASE)
# What stands in brackets is of another figure.
_BESIDE = re.compile(r"\([^)]*\)")
BENCHMARK = "throughput"
"""The kind of a case that is a benchmark of steps, not a run."""
_LEADING = re.compile(r"^\s*~?\s*(\d+(?:\.\d+)?)\s*([kKmM])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCase:
    """A whole training run as its source describes it; None and "" where it does not say.

    parameters, active_parameters   of the model, and of what a token visits
    tokens          that it was trained on
    seq_len         tokens per sequence in the longest phase
    batch_tokens    tokens per step
    devices         accelerators;  pue, usd_per_device_hour   as the source states them
    counts_downtime False where the published hours are those of the steady step alone
    counts_site     False where the published energy is that of the boards alone
    faults          cells that could not be read
    """

    row: int
    id: str
    model: str = ""
    org: str = ""
    kind: str = ""
    scope: str = ""
    parameters: float | None = None
    active_parameters: float | None = None
    layers: int | None = None
    hidden: int | None = None
    ffn: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    vocab: int | None = None
    experts: int | None = None
    top_k: int | None = None
    tokens: float | None = None
    seq_len: int | None = None
    batch_tokens: float | None = None
    precision: str = ""
    device: str = ""
    devices: int | None = None
    interconnect: str = ""
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    zero: str = ""
    pue: float | None = None
    usd_per_device_hour: float | None = None
    counts_downtime: bool = True
    counts_site: bool = True
    source: str = ""
    faults: tuple[str, ...] = ()


def read_cases(path: str | Path) -> tuple[PublishedCase, ...]:
    """The cases of a CSV file, in its order; a cell that cannot be read is left empty, and said in
    `faults`.

    Raises UnknownNameError for a column that is neither known nor measured, DocumentError for a
    missing `id` column and an empty or repeated id.
    """
    table = read_table(path, CASE_COLUMNS, skipped=MEASURED_CASE_COLUMNS, required=("id",))
    table.check_ids()
    return tuple(_case(table, row) for row in table.rows)


def _case(table: Table, row: Row) -> PublishedCase:
    cells = dict(zip(table.columns, map(text_cell, row.cells), strict=True))
    faults: list[str] = []

    def number(column: str, unit: float = 1.0) -> float | None:
        try:
            found = number_cell(cells[column], table.where(row, column))
        except DocumentError as error:
            faults.append(str(error))
            return None
        return found * unit if found else None

    def whole(column: str) -> int | None:
        found = number(column)
        return None if found is None else round(found)

    said = f"{cells['hours_kind']} {cells['scope']}"
    return PublishedCase(
        row=row.number,
        id=cells["id"],
        model=cells["model"],
        org=cells["org"],
        kind=cells["kind"],
        scope=cells["scope"],
        parameters=number("params_total_b", 1e9),
        active_parameters=number("params_active_b", 1e9),
        layers=whole("layers"),
        hidden=whole("hidden"),
        ffn=leading_count(cells["ffn"]),
        heads=whole("heads"),
        kv_heads=leading_count(cells["kv_heads"]),
        vocab=leading_count(cells["vocab"]),
        experts=leading_count(cells["experts"]),
        top_k=whole("topk"),
        tokens=number("tokens_b", 1e9),
        seq_len=_main_length(cells["seq_len"]),
        batch_tokens=number("global_batch_tokens_m", 1e6),
        precision=cells["precision"],
        device=cells["accel"],
        devices=whole("accel_count"),
        interconnect=cells["interconnect"],
        tp=leading_count(cells["tp"]),
        pp=leading_count(cells["pp"]),
        cp=leading_count(cells["cp"]),
        ep=leading_count(cells["ep"]),
        zero=cells["zero"],
        pue=number("pue"),
        usd_per_device_hour=number("cost_rate_usd_per_h"),
        counts_downtime=_STEADY.search(said) is None and cells["kind"] != BENCHMARK,
        counts_site=_BOARDS.search(_BESIDE.sub("", cells["energy_basis"])) is None,
        source=cells["source_url"],
        faults=tuple(faults),
    )


def leading_count(text: str) -> int | None:
    """The whole number that a cell begins with, or None.

    >>> leading_count("64 over 8 nodes"), leading_count("128K"), leading_count("not given")
    (64, 128000, None)
    """
    found = _LEADING.match(text)
    if found is None:
        return None
    number, letter = found.groups()
    return round(float(number) * {"k": 1e3, "m": 1e6}.get((letter or "").lower(), 1.0)) or None


def _main_length(text: str) -> int | None:
    """Of `4096 -> 8192; 131072 for ~800B tokens` the last of the first phases: 8192."""
    steps = re.split(r"->|→", text.partition(";")[0])
    return leading_count(steps[-1])
