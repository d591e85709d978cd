"""A table as the text of a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable


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
