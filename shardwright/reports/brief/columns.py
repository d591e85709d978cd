"""`Column`: a column of a CSV table for spreadsheets; tables, and their data dictionaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profiles.csv_table import csv_text
from shardwright.analysis.answer_json import interval_names

# Prefixes that a spreadsheet interprets as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column; `unit` is "" for text and plain numbers."""

    name: str
    unit: str
    meaning: str


def with_interval(name: str, unit: str, meaning: str) -> tuple[Column, ...]:
    """Columns of a number and the ends of its 90 % interval: `days`, `days_low`, `days_high`."""
    _, low, high = interval_names(name)
    return (
        Column(name=name, unit=unit, meaning=meaning),
        Column(name=low, unit=unit, meaning=f"5 % quantile of {name}"),
        Column(name=high, unit=unit, meaning=f"95 % quantile of {name}"),
    )


def ends_of(row: Mapping[str, Any], name: str) -> tuple[Any, Any]:
    """The ends of a number's 90 % interval in a row, None if missing."""
    _, low, high = interval_names(name)
    return row.get(low), row.get(high)


def table_csv(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per row; missing values are empty, numbers have full precision."""
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
