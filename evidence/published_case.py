"""`PublishedCase`: the published description of a whole training run, without its results.

Predictions use only these values: totals (days, device-hours, energy, dollars, carbon), throughput,
utilization and derived columns are skipped while reading, and so are notes, which repeat them. The
columns about the published hours and energy are read only for whether they include downtime
(`counts_downtime`), and hosts and cooling (`counts_site`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.csv_table import Row, Table, number_cell, read_table
from shardwright.runs.run import PublishedRun

# Columns of a table of whole runs that predictions must not use.
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
_UNITS = dict.fromkeys(("params_total_b", "params_active_b", "tokens_b"), 1e9)
_UNITS |= {"global_batch_tokens_m": 1e6}
CASE_COLUMNS = (*_TEXTS, *_NUMBERS)
# Field of `PublishedRun` -> column; of several counts in a cell of text the first is used.
_RUN_TEXTS = {
    "id": "id",
    "source": "source_url",
    "model": "model",
    "precision": "precision",
    "device": "accel",
    "inter_node_link": "interconnect",
}
_RUN_COUNTS = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "num_heads": "heads",
    "ffn_size": "ffn",
    "num_kv_heads": "kv_heads",
    "vocab_size": "vocab",
    "num_devices": "accel_count",
    **{degree: degree for degree in ("tp", "pp", "cp", "ep")},
}
# Words for hours of steady steps, without interruptions.
_STEADY = re.compile(
    r"no downtime|without downtime|steady rate x tokens|iteration time|computed from logs|"
    r"not billed time",
    re.IGNORECASE,
)
# Words for energy of the boards alone.
_BOARDS = re.compile(r"no PUE|without PUE", re.IGNORECASE)
# Text in brackets is about another figure.
_BRACKETS = re.compile(r"\([^)]*\)")
BENCHMARK = "throughput"
"""The kind of a case that is a benchmark of steps, not a run."""
_LEADING = re.compile(r"^\s*~?\s*(\d+(?:\.\d+)?)\s*([kKmM])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCase:
    """A whole training run as its source describes it; None or "" if not stated.

    run             model, device and degrees; sequence length of the longest phase
    parameters, active_parameters   of the model, all and per token
    zero            sharding of the states, in the source's words
    tokens          of the whole training;  batch_tokens  per step
    counts_downtime False if the published hours are of steady steps only
    counts_site     False if the published energy is of the boards only
    faults          messages about unreadable cells
    """

    run: PublishedRun
    org: str
    kind: str
    zero: str
    parameters: float | None
    active_parameters: float | None
    experts: int | None
    tokens: float | None
    batch_tokens: float | None
    pue: float | None
    usd_per_device_hour: float | None
    counts_downtime: bool
    counts_site: bool
    faults: tuple[str, ...]


def read_cases(path: str | Path) -> tuple[PublishedCase, ...]:
    """The cases of a CSV file, in its order; unreadable cells are empty and listed in `faults`.

    Raises UnknownNameError for an unknown column, DocumentError for a missing `id` column and an
    empty or repeated id.
    """
    table = read_table(path, CASE_COLUMNS, skipped=MEASURED_CASE_COLUMNS, required=("id",))
    table.check_ids()
    return tuple(_case(table, row) for row in table.rows)


def _case(table: Table, row: Row) -> PublishedCase:
    cells = table.texts(row)
    numbers: dict[str, float | None] = {}
    faults: list[str] = []
    for column in _NUMBERS:
        found = table.parsed(row, column, number_cell, faults)
        numbers[column] = found * _UNITS.get(column, 1.0) if found else None
    figures: dict[str, Any] = {name: cells[column] for name, column in _RUN_TEXTS.items()}
    for name, column in _RUN_COUNTS.items():
        number = numbers.get(column)
        figures[name] = (
            leading_count(cells[column]) if column in _TEXTS else number and round(number)
        )
    hours = f"{cells['hours_kind']} {cells['scope']}"
    return PublishedCase(
        run=PublishedRun(row=row.number, seq_len=_main_length(cells["seq_len"]), **figures),
        org=cells["org"],
        kind=cells["kind"],
        zero=cells["zero"],
        parameters=numbers["params_total_b"],
        active_parameters=numbers["params_active_b"],
        experts=leading_count(cells["experts"]),
        tokens=numbers["tokens_b"],
        batch_tokens=numbers["global_batch_tokens_m"],
        pue=numbers["pue"],
        usd_per_device_hour=numbers["cost_rate_usd_per_h"],
        counts_downtime=_STEADY.search(hours) is None and cells["kind"] != BENCHMARK,
        counts_site=_BOARDS.search(_BRACKETS.sub("", cells["energy_basis"])) is None,
        faults=tuple(faults),
    )


def leading_count(text: str) -> int | None:
    """The integer at the beginning of a cell, or None.

    >>> leading_count("64 over 8 nodes"), leading_count("128K"), leading_count("not given")
    (64, 128000, None)
    """
    found = _LEADING.match(text)
    if found is None:
        return None
    number, letter = found.groups()
    return round(float(number) * {"k": 1e3, "m": 1e6}.get((letter or "").lower(), 1.0)) or None


def _main_length(text: str) -> int | None:
    """The last of the first phases: 8192 of `4096 -> 8192; 131072 for ~800B tokens`."""
    steps = re.split(r"->|→", text.partition(";")[0])
    return leading_count(steps[-1])
