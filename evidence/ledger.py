"""The ledger of the locked half: one line per opening, appended and never changed."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from evidence.prospective import ErrorScores, Scores
from profiles.csv_table import csv_text, read_table
from profiles.document import need_writable, write_bytes
from profiles.errors import DocumentError

LEDGER_FILE = Path(__file__).parents[1] / "docs" / "locked_ledger.csv"
# Openings that one issue may use: each tells something of the locked half.
MOST_OPENINGS = 3
_HEAD = ("date", "commit", "rows_sha256")
_COUNTS = ("rows", "sources")
_DIGITS = 5


def _columns() -> tuple[str, ...]:
    """The columns of the ledger: fields of Scores, `step_median` for `scores.step.median`."""
    counts = [field.name for field in fields(Scores) if field.type == "int"]
    errors = [field.name for field in fields(Scores) if field.type == "ErrorScores"]
    parts = [f"{name}_{field.name}" for name in errors for field in fields(ErrorScores)]
    return (*_HEAD, *counts, *parts)


COLUMNS = _columns()


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One opening of the locked half.

    date          ISO date
    commit        of the code and the coefficients that predicted
    rows_sha256   digest of the locked rows with their measurements
    """

    date: str
    commit: str
    rows_sha256: str
    scores: Scores


def read_ledger(path: Path) -> tuple[LedgerEntry, ...]:
    """The entries of a ledger in order; none if there is no such file.

    Raises DocumentError if its header is not COLUMNS.
    """
    if not path.exists():
        return ()
    _checked_bytes(path)
    table = read_table(path, COLUMNS, required=COLUMNS)
    return tuple(_entry(dict(zip(COLUMNS, row.cells, strict=True))) for row in table.rows)


def append_entry(path: Path, entry: LedgerEntry) -> None:
    """Writes the ledger's old bytes and one more line, atomically; makes a missing ledger.

    Raises DocumentError, and writes nothing, if the header is not COLUMNS or the last line is cut.
    """
    old = _checked_bytes(path) if path.exists() else csv_text(COLUMNS, ()).encode()
    line = csv_text(_cells(entry), ()).encode()
    write_bytes(path, old + line)


def check_ledger(path: Path) -> None:
    """Raises DocumentError if an entry could not be appended: to be called before any score is
    computed."""
    need_writable(path)
    if path.exists():
        _checked_bytes(path)


def _checked_bytes(path: Path) -> bytes:
    content = path.read_bytes()
    if not content.startswith(csv_text(COLUMNS, ()).encode()):
        raise DocumentError(
            f"{path}:1: this header is not the ledger's; old lines are never rewritten, so keep "
            "the file under another name and start a new one"
        )
    if not content.endswith(b"\n"):
        raise DocumentError(f"{path}: the last line is cut short; restore the file from git")
    return content


def _cells(entry: LedgerEntry) -> list[str]:
    cells = [entry.date, entry.commit, entry.rows_sha256]
    for name in COLUMNS[len(_HEAD) :]:
        part, _, field = name.partition("_")
        value = getattr(entry.scores, part)
        cells.append(_text(getattr(value, field) if field else value))
    return cells


def _text(value: int | float | tuple[tuple[str, float], ...]) -> str:
    if isinstance(value, tuple):
        return " ".join(f"{source}={_text(share)}" for source, share in value)
    if isinstance(value, int):
        return str(value)
    return "" if math.isnan(value) else f"{value:.{_DIGITS}g}"


def _entry(cells: dict[str, str]) -> LedgerEntry:
    parts: Any = {
        field.name: ErrorScores(
            **{f.name: _value(f.name, cells[f"{field.name}_{f.name}"]) for f in fields(ErrorScores)}
        )
        for field in fields(Scores)
        if field.type == "ErrorScores"
    }
    counts: Any = {"rows": int(cells["rows"]), "unsupported": int(cells["unsupported"])}
    return LedgerEntry(
        date=cells["date"],
        commit=cells["commit"],
        rows_sha256=cells["rows_sha256"],
        scores=Scores(**counts, **parts),
    )


def _value(name: str, text: str) -> Any:
    if name in _COUNTS:
        return int(text)
    if name == "source_coverage":
        pairs = [pair.rpartition("=") for pair in text.split()]
        return tuple((source, float(share)) for source, _, share in pairs)
    return float(text) if text else math.nan
