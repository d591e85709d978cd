"""CSV tables: a strict reader (checked header, rows with line numbers, cells parsed by kind) and a
writer.

UTF-8 with or without a byte order mark, LF or CRLF, quoted commas and line breaks. Every message
has file, line and column, the found and the expected value.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from profiles.errors import DocumentError, UnknownNameError
from profiles.text_file import read_text

T = TypeVar("T")
# Empty text cells as spreadsheets and data frames write them.
_EMPTY_TEXT = frozenset({"", "nan", "NaN"})
_FLAG_WORDS = {"true": True, "yes": True, "false": False, "no": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: `number` counts data rows from 1, `line` is its first line in the file."""

    number: int
    line: int
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The cells of the requested columns, in the order of `columns`."""

    path: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def where(self, row: Row, column: str) -> str:
        """The position of a cell for messages: `runs.csv:17:dp`."""
        return f"{self.path}:{row.line}:{column}"

    def texts(self, row: Row) -> dict[str, str]:
        """Column -> text of its cell, "" if it is empty."""
        return dict(zip(self.columns, map(text_cell, row.cells), strict=True))

    def parsed(
        self, row: Row, column: str, parse: Callable[[str, str], T], faults: list[str]
    ) -> T | None:
        """A cell, read by `parse(text, place)`; None if unreadable, with the message appended to
        `faults`."""
        try:
            return parse(self.texts(row)[column], self.where(row, column))
        except DocumentError as error:
            faults.append(str(error))
            return None

    def check_ids(self) -> None:
        """Raises DocumentError unless every row has a unique id."""
        lines: dict[str, int] = {}
        for row in self.rows:
            name = text_cell(row.cells[self.columns.index("id")])
            if not name:
                raise DocumentError(
                    f"{self.where(row, 'id')}: the id is empty; every row needs one"
                )
            if name in lines:
                raise DocumentError(
                    f"{self.where(row, 'id')}: {name!r} is the id of line {lines[name]} already; "
                    "ids must differ, since measurements are found by them"
                )
            lines[name] = row.line


def read_header(path: str | Path) -> tuple[str, ...]:
    """The column names of a CSV file; raises DocumentError if there are none."""
    return _header(_records(path), str(path))


def read_table(
    path: str | Path,
    wanted: Sequence[str],
    *,
    skipped: Collection[str] = (),
    required: Collection[str] = (),
) -> Table:
    """The rows of a CSV file with the `wanted` columns; `skipped` ones may exist and are ignored.

    A missing column has empty cells unless it is `required`. Raises UnknownNameError for other
    columns, DocumentError for a missing file or required column, a repeated column, a row of
    another length, or text that is no UTF-8 CSV.
    """
    records = _records(path)
    header = _header(records, str(path))
    for name in header:
        if name not in wanted and name not in skipped:
            raise UnknownNameError("column", name, {*wanted, *skipped}, where=f"{path}:1")
    for name in required:
        if name not in header:
            raise DocumentError(
                f"{path}:1: the column {name!r} is missing; the header has {', '.join(header)}"
            )
    places = [header.index(name) if name in header else None for name in wanted]
    rows: list[Row] = []
    for line, cells in records:
        if not cells:
            continue
        if len(cells) != len(header):
            raise DocumentError(
                f"{path}:{line}: {len(cells)} cells, but the header names {len(header)} columns; "
                "quote cells that hold commas"
            )
        kept = tuple("" if place is None else cells[place].strip() for place in places)
        rows.append(Row(number=len(rows) + 1, line=line, cells=kept))
    return Table(path=str(path), columns=tuple(wanted), rows=tuple(rows))


def text_cell(text: str) -> str:
    """The text of a cell, "" for an empty one (also for pandas' `nan`)."""
    return "" if text in _EMPTY_TEXT else text


def count_cell(text: str, where: str, *, least: int = 0) -> int | None:
    """The whole number of a cell (`8` or `8.0`), None for an empty one.

    Raises DocumentError for text, nan, a fraction or a number below `least`.
    """
    number = number_cell(text, where, kind=f"a whole number of {least} or more")
    if number is None:
        return None
    if number != math.floor(number) or number < least:
        raise DocumentError(f"{where}: {text!r} is not a whole number of {least} or more")
    return int(number)


def flag_cell(text: str, where: str) -> bool | None:
    """The boolean of a cell (`1`, `0`, `1.0`, `true`, `yes`, `no`, ...), None for an empty one;
    raises DocumentError for other text."""
    if text.lower() in _FLAG_WORDS:
        return _FLAG_WORDS[text.lower()]
    number = number_cell(text, where, kind="1 or 0")
    if number is not None and number not in (0.0, 1.0):
        raise DocumentError(f"{where}: {text!r} is not 1 or 0")
    return None if number is None else number == 1.0


def number_cell(text: str, where: str, *, kind: str = "a number of 0 or more") -> float | None:
    """The number of a cell, None for an empty one.

    Raises DocumentError for text, nan, an infinity or a negative number; `kind` is the expected
    value in the message.
    """
    if not text:
        return None
    with contextlib.suppress(ValueError):
        number = float(text)
        if math.isfinite(number) and number >= 0:
            return number
    raise DocumentError(
        f"{where}: {text!r} is not {kind}; leave it empty if the source does not state it"
    )


def _header(records: Iterator[tuple[int, list[str]]], path: str) -> tuple[str, ...]:
    _, cells = next(records, (1, []))
    header = tuple(cell.strip() for cell in cells)
    if not header:
        raise DocumentError(f"{path}: the file is empty; its first line must name the columns")
    if len(header) == 1 and (";" in header[0] or "\t" in header[0]):
        raise DocumentError(f"{path}:1: columns must be separated by commas, not {header[0]!r}")
    for number, name in enumerate(header):
        if name in header[:number]:
            raise DocumentError(f"{path}:1: the column {name!r} is named twice")
    return header


def _records(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """All records of the file, each with its first line."""
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    begins = 1
    try:
        for cells in reader:
            yield begins, cells
            begins = reader.line_num + 1
    except csv.Error as error:
        raise DocumentError(f"{path}:{reader.line_num}: not CSV: {error}") from error


def shipped_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table that belongs to the package, by column; not checked."""
    return list(csv.DictReader(io.StringIO(read_text(path))))


def csv_text(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A line of column names, then one line per row; None is an empty cell.

    >>> csv_text(("model", "tp"), [("a, b", 4), ("c", None)])
    'model,tp\\n"a, b",4\\nc,\\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
