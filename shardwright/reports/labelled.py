"""Labelled text: wrapped under its first word, or as much as fits in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.text import Text

GAP = "   "
"""Separator of two parts of a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """A labelled text such as `Limit:  compute of rank 0 ...`; lines break between parts if
    possible, otherwise between words."""

    label: Text
    parts: tuple[Text, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        indent = self.label.cell_len
        width = max(options.max_width - indent, 20)
        for number, line in enumerate(_lines(self.parts, console, width)):
            yield Text.assemble(self.label if number == 0 else " " * indent, line)


def labelled(label: str | Text, *parts: str | Text, style: str = "") -> Labelled:
    """The label, with its trailing spaces, followed by the parts."""
    return Labelled(
        label=label if isinstance(label, Text) else Text(label, style=style),
        parts=tuple(one if isinstance(one, Text) else Text(one, style=style) for one in parts),
    )


def _lines(parts: Sequence[Text], console: Console, width: int) -> list[Text]:
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + len(GAP) + part.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], GAP, part)
        else:
            wrapped = list(part.wrap(console, width))
            for line in wrapped:
                line.rstrip()
            lines += wrapped
    return lines


WIDTH = 100
"""Width of a short answer in columns; `--explain` prints the parts left out."""
LABEL = 8
"""Width of a short answer's labels."""


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


# Required packages, a batch that is probably in tokens, and a flag that most clusters need.
_FIRST = ("(install ", "--global-batch counts", "--sequence-parallel:")


def assumed_line(sentences: Sequence[str]) -> Text:
    """The assumptions that fit in a line, without their parts in brackets, and the number of the
    others; those of `_FIRST` precede."""
    ordered = sorted(sentences, key=lambda said: not any(words in said for words in _FIRST))
    short = [re.sub(r" \([^()]*\)", "", sentence) for sentence in ordered]
    more = f"; {len(short)} more (--explain)"
    line, shown = "", 0
    for sentence in short:
        longer = f"{line}; {sentence}" if line else sentence
        if len(longer) + len(more) <= WIDTH - LABEL:
            line, shown = longer, shown + 1
    left = len(short) - shown
    if left:
        line = f"{line}; {left} more (--explain)".removeprefix("; ")
    return one_line("Assumed ", line, style="dim")
