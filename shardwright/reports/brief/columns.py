"""A table for spreadsheets, and the dictionary of its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profiles.csv_text import csv_text

# What a spreadsheet would take for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """unit  "" for text and plain numbers."""

    name: str
    unit: str
    meaning: str


def with_interval(name: str, unit: str, meaning: str) -> tuple[Column, ...]:
    """A number and the ends of its 90 % interval: `days`, `days_low`, `days_high`.

    A unit that ends the name stays its end: `step_time_s`, `step_time_low_s`.
    """
    stem, end = name, ""
    for suffix in ("_s", "_bytes"):
        if name.endswith(suffix) and not name.endswith("_per_s"):
            stem, end = name.removesuffix(suffix), suffix
    return (
        Column(name=name, unit=unit, meaning=meaning),
        Column(name=f"{stem}_low{end}", unit=unit, meaning=f"5 % quantile of {name}"),
        Column(name=f"{stem}_high{end}", unit=unit, meaning=f"95 % quantile of {name}"),
    )


def table_csv(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per row; what a row lacks is empty, numbers are in full."""
    names = [column.name for column in columns]
    return csv_text(names, ([_cell(row.get(name)) for name in names] for row in rows))


def dictionary_csv(columns: Sequence[Column]) -> str:
    """One line per column: its name, unit and meaning."""
    rows = ([column.name, column.unit, column.meaning] for column in columns)
    return csv_text(["column", "unit", "meaning"], rows)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (int, float)):
        return repr(value)
    text = str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
