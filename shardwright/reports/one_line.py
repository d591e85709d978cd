"""`one_line`: a label and as many parts as fit in one line of a short answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.text import Text

from shardwright.reports.labelled import GAP

WIDTH = 100
"""Columns of a short answer; `--explain` prints what is left out."""


def one_line(label: str, *parts: str, style: str = "", bold: bool = False) -> Text:
    """The label and its parts, in the order of their importance: parts that do not fit are left
    out, and a first part that does not fit is cut after a whole phrase or number."""
    line = ""
    for part in filter(None, parts):
        room = WIDTH - len(label) - len(line) - (len(GAP) if line else 0)
        if len(part) <= room:
            line += (GAP if line else "") + part
        elif not line:
            whole = re.match(r".+(?=[,;] | \[)", part[: room - 3])
            line = (whole.group() if whole else part[: room - 4].rstrip()) + " ..."
    return Text.assemble((label, "bold" if bold else style), (line, style))


# Required packages, a batch that was probably meant in tokens, and a flag that most clusters need.
_FIRST = ("(install ", "--global-batch counts", "--sequence-parallel:")


def some_of(sentences: Sequence[str], room: int) -> str:
    """The sentences that fit, without their parts in brackets, and the number of the others; those
    of `_FIRST` precede."""
    ordered = sorted(sentences, key=lambda said: not any(words in said for words in _FIRST))
    short = [re.sub(r" \([^()]*\)", "", sentence) for sentence in ordered]
    more = f"; {len(short)} more (--explain)"
    line, shown = "", 0
    for sentence in short:
        longer = f"{line}; {sentence}" if line else sentence
        if len(longer) + len(more) <= room:
            line, shown = longer, shown + 1
    left = len(short) - shown
    return line if not left else f"{line}; {left} more (--explain)".removeprefix("; ")
