"""`Brief`: the content of a report, for the writers of HTML, Markdown, terminal and figures.

Texts are not escaped; each writer does it. Every chart has a unit.
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
    """A key figure at the top; `note` is its interval or explanation."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table; a head with the prefix `>` marks a column of numbers.

    chosen  highlight the first row

    Raises InputError if a row and the heads have different lengths.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    chosen: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.heads):
                raise InputError(f"a row has {len(row)} cells, its table {len(self.heads)} columns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A horizontal bar from `low` to `high`, in either order; `words` is the text of its value."""

    name: str
    low: float
    high: float
    words: str
    colour: str = BLUE


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """Bars on one axis.

    unit         of the axis
    mark         position of a line across all bars, None for none
    mark_words   its description
    """

    title: str
    unit: str
    bars: tuple[Bar, ...]
    mark: float | None = None
    mark_words: str = ""
    note: str = ""

    @property
    def table(self) -> Table:
        """The chart as a table, for writers without drawings."""
        rows = tuple((bar.name, bar.words) for bar in self.bars)
        return Table(heads=(self.title, f">{self.unit}"), rows=rows, note=self.note)

    @property
    def ends(self) -> tuple[float, float]:
        """Range of the axis: all bars and the mark, from 0 if they are positive and far apart."""
        values = [end for bar in self.bars for end in (bar.low, bar.high)]
        values += [] if self.mark is None else [self.mark]
        low, high = min(values, default=0.0), max(values, default=1.0)
        if 0 < low < 0.5 * high:
            low = 0.0
        return (low, high) if high > low else (low, low + 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading with pictures, bar charts and tables, in this order.

    short  also in the short report on a terminal
    """

    title: str
    pictures: tuple[Picture, ...] = ()
    bars: tuple[BarChart, ...] = ()
    tables: tuple[Table, ...] = ()
    note: str = ""
    short: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """A report.

    headline   one sentence for an executive
    subtitle   the request, and the proof of the answer
    command    to reproduce the answer, "" if unknown
    """

    title: str
    headline: str
    subtitle: str
    facts: tuple[Fact, ...]
    sections: tuple[Section, ...]
    command: str = ""
    version: str = ""

    @property
    def has_timeline(self) -> bool:
        """Whether there is a picture that can be stretched along the time."""
        return any(one.name == "timeline" for part in self.sections for one in part.pictures)


def between(low: float, high: float, written: Callable[[float], str]) -> str:
    """`low to high` as text; a common unit after both is printed once."""
    first, last = written(low), written(high)
    number, space, unit = first.rpartition(" ")
    if space and last.endswith(space + unit) and not first.startswith("$"):
        first = number
    return f"{first} to {last}"
