"""A brief on the terminal, at most 100 columns: headline, key figures, tables, notes. Charts of
bars become tables; pictures are on the page only."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from shardwright.reports.brief.brief import Brief, Section, Table
from shardwright.reports.terminal import table

_WORD = 16  # longest word that is never broken


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


def printed_table(made: Table) -> RichTable:
    """The table in text; long words are folded, never cut."""
    rows = table(*made.heads)
    rows.show_header = any(made.heads)
    for number, column in enumerate(rows.columns):
        column.overflow = "fold"
        names = [row[number] for row in made.rows]
        column.no_wrap = not made.heads[number].startswith(">") and all(map(_is_word, names))
    for number, row in enumerate(made.rows):
        rows.add_row(*map(Text, row), style="bold" if made.chosen and not number else "")
    return rows
