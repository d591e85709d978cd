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
        lines += _section(section)
    if brief.command:
        lines += ["#### How to reproduce", "", *("    " + one for one in brief.command.split("\n"))]
        lines += [""]
    if brief.version:
        lines += [f"Shardwright {cell(brief.version)}", ""]
    return "\n".join(lines)


def _section(section: Section) -> list[str]:
    body: list[str] = []
    for chart in section.bars:
        named = Table(
            heads=(chart.title, f">{chart.unit}"),
            rows=tuple((bar.name, bar.words) for bar in chart.bars),
            note=chart.note,
        )
        body += [_table(named), ""]
    for each in section.tables:
        body += [_table(each), ""]
    if section.note:
        body += [cell(section.note), ""]
    if not body:
        return []
    rows = sum(len(each.rows) for each in section.tables)
    if rows > _SHORT:
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
