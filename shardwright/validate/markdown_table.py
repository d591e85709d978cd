"""Markdown tables: percentages, cells that cannot leave their cell, rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def percent(fraction: float, *, signed: bool = False) -> str:
    """`4.2 %`, `+4.2 %` where signed, or a dash for nan."""
    if math.isnan(fraction):
        return "-"
    return f"{fraction * 100:+.1f} %" if signed else f"{fraction * 100:.1f} %"


def cell(text: str) -> str:
    """Text that cannot leave its cell: one line, no bar, no markup."""
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return plain.replace("|", "\\|").replace("`", "'")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """A Markdown table whose first `words` columns are text and whose others are numbers."""
    rule = ["---"] * words + ["---:"] * (len(head) - words)
    lines = [head, rule, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
