"""The difference of two plans as people read it: on a terminal, and in a pull request."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from profiles.units import format_bytes, format_count, format_percent, format_time, format_usd
from shardwright.analysis.plan_diff import Change, PlanDiff
from shardwright.reports.markdown_table import cell
from shardwright.reports.markdown_table import table as markdown_table
from shardwright.reports.price_words import price_note
from shardwright.reports.terminal import table

EQUAL = "The two plans are equal."


def plan_diff_report(diff: PlanDiff) -> RenderableType:
    """Sections of what was asked, decided, gained, and where the step and the memory went."""
    if diff.equal:
        return Text(EQUAL)
    parts: list[RenderableType] = [Text(_sentence(diff.reason), style="bold"), Text("")]
    for title, differences in _worded(diff):
        words = table(title, "before", "after")
        for difference in differences:
            words.add_row(difference[0], difference[1], difference[2])
        parts += [words, Text("")]
    for title, changes in _counted(diff):
        numbers = table(title, ">before", ">after", ">change", ">")
        for change in changes:
            numbers.add_row(*_cells(change))
        parts += [numbers, Text("")]
    for line in _price_lines(diff):
        parts += [Text(line), Text("")]
    return Group(*parts[:-1])


def plan_diff_markdown(diff: PlanDiff) -> str:
    """The same as Markdown tables."""
    if diff.equal:
        return f"{EQUAL}\n"
    lines = [cell(_sentence(diff.reason)), ""]
    for title, differences in _worded(diff):
        rows = (list(map(cell, words)) for words in differences)
        lines += [markdown_table((title, "before", "after"), rows, words=3), ""]
    for title, changes in _counted(diff):
        head = (title, "before", "after", "change", "")
        lines += [markdown_table(head, map(_cells, changes)), ""]
    for line in _price_lines(diff):
        lines += [cell(line), ""]
    return "\n".join(lines[:-1]) + "\n"


def _price_lines(diff: PlanDiff) -> list[str]:
    """What the dollars rest on; none where no plan has any."""
    if not any(change.unit == "usd" for change in diff.figures):
        return []
    before, after = diff.prices
    if before == after:
        return [f"Price: {price_note(before)}"]
    return [f"Price before: {price_note(before)}", f"Price after: {price_note(after)}"]


def _worded(diff: PlanDiff) -> Iterable[tuple[str, list[tuple[str, str, str]]]]:
    for title, found in (("asked", diff.asked), ("decided", diff.decided)):
        if found:
            yield title, [(d.name, d.before, d.after) for d in found]


def _counted(diff: PlanDiff) -> Iterable[tuple[str, tuple[Change, ...]]]:
    titles = ("what it brings", "where the step goes", "where the fullest rank's memory goes")
    for title, found in zip(titles, (diff.figures, diff.parts, diff.memory), strict=True):
        if any(change.before != change.after for change in found):
            yield title, found


def _cells(change: Change) -> tuple[str, str, str, str, str]:
    unit, moved = change.unit, change.difference
    if moved is None:
        said = ""
    elif moved == 0:
        said = "="
    else:
        size = f"{abs(moved) * 100:.2g} points" if unit == "share" else _quantity(abs(moved), unit)
        said = ("+" if moved > 0 else "-") + size
    share = "" if change.relative is None or moved == 0 else f"{change.relative * 100:+.1f} %"
    return (change.name, _quantity(change.before, unit), _quantity(change.after, unit), said, share)


def _quantity(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "s":
        return format_time(value)
    if unit == "bytes":
        return format_bytes(value)
    if unit == "usd":
        return format_usd(value)
    if unit == "share":
        return format_percent(value)
    return format_count(value) if unit == "per_s" else f"{value:.3g}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
