"""A label with text, wrapped under its first word and not under the label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.text import Text

GAP = "   "
"""Between two parts of one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """`Limit:  compute of rank 0 ...`; a line breaks between parts where it can, else at words."""

    label: Text
    parts: tuple[Text, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        indent = self.label.cell_len
        width = max(options.max_width - indent, 20)
        for number, line in enumerate(_lines(self.parts, console, width)):
            yield Text.assemble(self.label if number == 0 else " " * indent, line)


def labelled(label: str | Text, *parts: str | Text, style: str = "") -> Labelled:
    """The parts behind a label that keeps its trailing spaces."""
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
