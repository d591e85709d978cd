"""`Brief`: what a report says, before it is a page, Markdown, or a figure.

Texts are plain: each writer escapes them. Every chart names its unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from profiles.errors import InputError
from shardwright.reports.picture import Picture

BLUE, ORANGE, GREEN, RED, GREY = "#4c78a8", "#d97f2e", "#4a8f42", "#c9453f", "#9aa5b1"
COLOURS = (BLUE, ORANGE, GREEN, "#8e6bbf", RED, "#3f9c96", "#c75f8b", "#7a6a4f")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One of the large numbers at the top; note  its interval, or what it is of."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """heads that begin with `>` are of numbers; the first row is marked where `chosen`.

    Raises InputError for a row of another length than the heads.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    chosen: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.heads):
                raise InputError(f"a row of {len(row)} cells in a table of {len(self.heads)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A horizontal bar from `low` to `high` with the words of its value; `high` may be less than
    `low`."""

    name: str
    low: float
    high: float
    words: str
    colour: str = BLUE


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """Bars on one axis.

    unit   what the axis counts in
    mark   a line across all bars, None for none;  mark_words  what it is
    """

    title: str
    unit: str
    bars: tuple[Bar, ...]
    mark: float | None = None
    mark_words: str = ""
    note: str = ""

    @property
    def ends(self) -> tuple[float, float]:
        """The axis: all bars, the mark and, where nothing is below it, 0; never empty."""
        found = [end for bar in self.bars for end in (bar.low, bar.high)]
        found += [] if self.mark is None else [self.mark]
        low, high = min(found, default=0.0), max(found, default=1.0)
        if 0 < low < 0.5 * high:
            low = 0.0
        return (low, high) if high > low else (low, low + 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading with what stands under it: pictures, bars and tables in this order."""

    title: str
    pictures: tuple[Picture, ...] = ()
    bars: tuple[BarChart, ...] = ()
    tables: tuple[Table, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """A report.

    headline   one sentence that an executive reads
    subtitle   what was asked and how sure the answer is proven
    command    that answers it again, "" where it is not known
    """

    title: str
    headline: str
    subtitle: str
    facts: tuple[Fact, ...]
    sections: tuple[Section, ...]
    command: str = ""
    version: str = ""


def between(low: float, high: float, written: Callable[[float], str]) -> str:
    """Both ends, with their unit once where it is the same word behind both."""
    first, last = written(low), written(high)
    number, space, unit = first.rpartition(" ")
    if space and last.endswith(space + unit) and not first.startswith("$"):
        first = number
    return f"{first} to {last}"
