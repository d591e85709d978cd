"""A brief as Markdown for a pull request: headline, decision, what would change it."""

from __future__ import annotations

import re

from shardwright.reports.brief.brief import Brief, Section, Table

_MENTION = re.compile(r"(?<!\w)@(?=\w)")
# Longer tables are folded away.
_SHORT = 12


def brief_markdown(brief: Brief) -> str:
    """GitHub-flavoured; texts that come from outside cannot leave their place."""
    lines = [f"### {plain(brief.title)}", "", f"**{plain(brief.headline)}**", ""]
    lines += [plain(brief.subtitle), ""]
    facts = tuple((fact.name, fact.value, fact.note) for fact in brief.facts)
    if facts:
        heads = ("", "value", "90 % interval, or of what")
        lines += [*_table(Table(heads=heads, rows=facts)), ""]
    for section in brief.sections:
        lines += _section(section)
    if brief.command:
        lines += ["#### How to reproduce", "", *("    " + one for one in brief.command.split("\n"))]
        lines += [""]
    if brief.version:
        lines += [f"Shardwright {plain(brief.version)}", ""]
    return "\n".join(lines)


def plain(text: str) -> str:
    """Text that stays where it is: no table cell, tag, link, image, mention or line ends in it."""
    kept = " ".join(text.split())
    for sign in ("\\", "|", "`", "*", "[", "]"):
        kept = kept.replace(sign, "\\" + sign)
    kept = kept.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MENTION.sub("@\u200b", kept)


def _section(section: Section) -> list[str]:
    body: list[str] = []
    for chart in section.bars:
        named = Table(
            heads=(chart.title, f">{chart.unit}"),
            rows=tuple((bar.name, bar.words) for bar in chart.bars),
            note=chart.note,
        )
        body += [*_table(named), ""]
    for table in section.tables:
        body += [*_table(table), ""]
    if section.note:
        body += [plain(section.note), ""]
    if not body:
        return []
    rows = sum(len(table.rows) for table in section.tables)
    if rows > _SHORT:
        head = f"<details><summary>{plain(section.title)}</summary>"
        return [head, "", *body, "</details>", ""]
    return [f"#### {plain(section.title)}", "", *body]


def _table(table: Table) -> list[str]:
    lines = [
        "| " + " | ".join(plain(head.lstrip(">")) for head in table.heads) + " |",
        "|" + "|".join("---:" if head.startswith(">") else "---" for head in table.heads) + "|",
    ]
    for number, row in enumerate(table.rows):
        cells = [plain(cell) for cell in row]
        if table.chosen and number == 0:
            cells = [f"**{cell}**" if cell else "" for cell in cells]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", plain(table.note)] if table.note else lines
