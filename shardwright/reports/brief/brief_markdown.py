"""A brief as Markdown for a pull request: headline, decision, sensitivities."""

from __future__ import annotations

from shardwright.reports.brief.brief import Brief, Section, Table
from shardwright.reports.markdown_table import cell, table

# Longer tables are folded.
_SHORT = 12


def brief_markdown(brief: Brief) -> str:
    """GitHub-flavored Markdown; texts from outside are escaped."""
    lines = [f"### {cell(brief.title)}", "", f"**{cell(brief.headline)}**", ""]
    lines += [cell(brief.subtitle), ""]
    facts = tuple((fact.name, fact.value, fact.note) for fact in brief.facts)
    if facts:
        heads = ("", "value", "90 % interval, or note")
        lines += [_table(Table(heads=heads, rows=facts)), ""]
    for section in brief.sections:
        lines += _section(section, fold=True)
    if brief.command:
        lines += ["#### How to reproduce", "", *("    " + one for one in brief.command.split("\n"))]
        lines += [""]
    if brief.version:
        lines += [f"Shardwright {cell(brief.version)}", ""]
    return "\n".join(lines)


def section_markdown(section: Section) -> str:
    """One section on its own, never folded."""
    return "\n".join(_section(section, fold=False)) or f"#### {cell(section.title)}\n"


def _section(section: Section, *, fold: bool) -> list[str]:
    body: list[str] = []
    for each in (*(chart.table for chart in section.bars), *section.tables):
        body += [_table(each), ""]
    if section.note:
        body += [cell(section.note), ""]
    if not body:
        return []
    rows = sum(len(each.rows) for each in section.tables)
    if fold and rows > _SHORT:
        head = f"<details><summary>{cell(section.title)}</summary>"
        return [head, "", *body, "</details>", ""]
    return [f"#### {cell(section.title)}", "", *body]


def _table(made: Table) -> str:
    rows = [[cell(words) for words in row] for row in made.rows]
    if made.chosen and rows:
        rows[0] = [f"**{words}**" if words else "" for words in rows[0]]
    heads = [">" * head.startswith(">") + cell(head.removeprefix(">")) for head in made.heads]
    text = table(heads, rows, words=len(heads))
    return f"{text}\n\n{cell(made.note)}" if made.note else text
