"""Markdown tables: percentages, escaped cells, rows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

_MENTION = re.compile(r"(?<!\w)@(?=\w)")


def percent(fraction: float, *, signed: bool = False) -> str:
    """`4.2 %`, `+4.2 %` if signed, or a dash for nan."""
    if math.isnan(fraction):
        return "-"
    return f"{fraction * 100:+.1f} %" if signed else f"{fraction * 100:.1f} %"


def cell(text: str) -> str:
    """Escaped text: it cannot contain a cell border, tag, link, image, mention or line break."""
    kept = " ".join(text.split())
    for sign in ("\\", "|", "`", "*", "[", "]"):
        kept = kept.replace(sign, "\\" + sign)
    kept = kept.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MENTION.sub("@\u200b", kept)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """A Markdown table. The first `words` columns are text; the others, and those with the prefix
    `>` in the heading, are numbers."""
    right = [number >= words or name.startswith(">") for number, name in enumerate(head)]
    rule = "|".join("---:" if numbers else "---" for numbers in right)
    lines = ["| " + " | ".join(line) + " |" for line in rows]
    heads = "| " + " | ".join(name.removeprefix(">") for name in head) + " |"
    return "\n".join([heads, f"|{rule}|", *lines])


def section(title: str, *paragraphs: str) -> str:
    """A heading of the second level and its paragraphs, without the empty ones."""
    return "\n\n".join(part for part in (f"## {title}", *paragraphs) if part)
