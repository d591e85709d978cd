"""A brief on the terminal, at most 100 columns: headline, key figures, tables, notes. Charts of
bars become tables; pictures are on the page only."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from shardwright.reports.brief.brief import Brief, Section, Table
from shardwright.reports.terminal import table

_WORD = 16  # longest word that is never broken
_WIDTH = 100  # columns of a terminal
_NUMBERS = 3  # columns of numbers, of which folded cells are hard to compare
_GAP = "  "


def brief_report(brief: Brief, *, short: bool = False) -> RenderableType:
    """The brief as text; `short` leaves out the sections that are not in a short report."""
    facts = Table(
        heads=("", ">", "90 % interval, or note"),
        rows=tuple((fact.name, fact.value, fact.note) for fact in brief.facts),
    )
    lines: list[RenderableType] = [Text(brief.headline, style="bold"), Text(brief.subtitle)]
    lines += [Text(""), printed_table(facts)] if brief.facts else []
    return Group(*lines, *printed_sections(brief.sections, short=short))


def printed_sections(sections: Iterable[Section], *, short: bool = False) -> list[RenderableType]:
    """Sections with their titles, except those with pictures only."""
    lines: list[RenderableType] = []
    for section in sections:
        tables = [*(chart.table for chart in section.bars), *section.tables]
        drawn_only = section.pictures and not tables and not section.note
        if drawn_only or (short and not section.short):
            continue
        lines += [Text(""), Text(section.title, style="bold")]
        for number, one in enumerate(tables):
            lines += [*([Text("")] if number else []), printed_table(one)]
            lines += _note(one.note)
        lines += _note(section.note)
    return lines


def _is_word(cell: str) -> bool:
    return len(cell) <= _WORD and " " not in cell


def _note(text: str) -> list[RenderableType]:
    return [Text(" ".join(text.split()), style="dim")] if text else []


def section_report(section: Section) -> RenderableType:
    """One section on its own."""
    return Group(*printed_sections([section])[1:])


def printed_table(made: Table) -> RenderableType:
    """The table in text; long words are folded, never cut. If a table of several numbers is wider
    than the terminal, its longest texts are on separate lines."""
    apart = _texts_apart(made)
    return _stacked(made, apart) if apart else _grid(made)


def _texts_apart(made: Table) -> list[int]:
    """Columns of text to print on separate lines; [] if the table fits, has few numbers, or
    does not fit without its texts either."""
    lines = [made.heads, *made.rows]
    widths = [max(_width(line[n]) for line in lines) + len(_GAP) for n in range(len(made.heads))]
    texts = [n for n, head in enumerate(made.heads) if not head.startswith(">")]
    if len(made.heads) - len(texts) < _NUMBERS:
        return []
    apart: list[int] = []
    for number in sorted(texts, key=lambda n: -widths[n]):
        if sum(widths) - sum(widths[n] for n in apart) > _WIDTH:
            apart.append(number)
    fits = sum(widths) - sum(widths[n] for n in apart) <= _WIDTH
    return sorted(apart) if fits else []


def _stacked(made: Table, apart: list[int]) -> RenderableType:
    """Each row as its texts, and below them its other cells in columns."""
    others = [n for n in range(len(made.heads)) if n not in apart]
    right = [made.heads[n].startswith(">") for n in others]
    heads = tuple(head.removeprefix(">") for head in made.heads)
    widths = [max(_width(line[n]) for line in (heads, *made.rows)) for n in others]
    lines: list[RenderableType] = []
    for number, row in enumerate((heads, *made.rows)):
        style = "bold" if not number or (made.chosen and number == 1) else ""
        lines += [Text(line, style=style) for line in _filled(row[n] for n in apart)]
        for parts in zip_longest(*(row[n].splitlines() for n in others), fillvalue=""):
            cells = [
                part.rjust(width) if to_right else part.ljust(width)
                for part, width, to_right in zip(parts, widths, right, strict=True)
            ]
            lines.append(Text((_GAP + _GAP.join(cells)).rstrip(), style=style))
    return Group(*lines)


def _width(cell: str) -> int:
    return max(map(len, cell.splitlines()), default=0)


def _filled(texts: Iterable[str]) -> list[str]:
    """The texts on as few lines as possible."""
    lines = [""]
    for text in filter(None, texts):
        joined = f"{lines[-1]}{_GAP}{text}" if lines[-1] else text
        lines[-1:] = [joined] if len(joined) <= _WIDTH else [lines[-1], f"{_GAP}{text}"]
    return list(filter(None, lines))


def _grid(made: Table) -> RichTable:
    rows = table(*made.heads)
    rows.show_header = any(made.heads)
    for number, column in enumerate(rows.columns):
        column.overflow = "fold"
        names = [row[number] for row in made.rows]
        column.no_wrap = not made.heads[number].startswith(">") and all(map(_is_word, names))
    for number, row in enumerate(made.rows):
        rows.add_row(*map(Text, row), style="bold" if made.chosen and not number else "")
    return rows
