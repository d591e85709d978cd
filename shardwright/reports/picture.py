"""Pictures of reports as plain values, which a template renders as inline SVG.

Coordinates are SVG units; y grows downwards. Only the template writes markup, and it escapes texts.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

WIDTH = 900.0
LEFT = 84.0  # start of the axis; names of lanes and ticks are left of it
GRID = "#e8ecf1"
INK = "#333d47"

# Distinguishable with the common kinds of color blindness (Tableau 10, by Maureen Stone).
COLOURS = {
    "forward": "#4c78a8",
    "backward": "#f2a65a",
    "backward_input": "#e0709b",
    "backward_weight": "#8e6bbf",
    "optimizer": "#54a24b",
    "gradient_exchange": "#d9534f",
    "send": "#9aa5b1",
    "waiting": "#d8dde3",
}
RANK_COLOURS = ("#4c78a8", "#f2a65a", "#54a24b", "#d9534f", "#8e6bbf", "#72b7b2", "#e0709b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle with its tooltip; label is drawn inside, "" if it does not fit."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    label: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A text; anchor is `start`, `middle` or `end`."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    strong: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A path as SVG path data (`M1 2L3 4`): a line, or an area if `filled`."""

    data: str
    colour: str
    title: str = ""
    filled: bool = False
    dashed: bool = False
    width: float = 1.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of a picture's key; shape is `square`, `line`, `dash`, `ring` or `diamond`."""

    name: str
    colour: str
    shape: str = "square"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture. Drawing order, back to front: grid lines, boxes, paths, labels.

    note  one sentence under the picture, "" for none
    """

    name: str
    width: float = WIDTH
    height: float
    left: float = LEFT
    grid: tuple[Path, ...] = ()
    boxes: tuple[Box, ...] = ()
    paths: tuple[Path, ...] = ()
    labels: tuple[Label, ...] = ()
    key: tuple[Entry, ...] = ()
    note: str = ""

    @property
    def wide(self) -> bool:
        """Whether it needs the whole width of a page."""
        return self.width >= WIDTH


def line(x1: float, y1: float, x2: float, y2: float) -> str:
    """A straight line as path data."""
    return f"M{x1:.5g} {y1:.5g}L{x2:.5g} {y2:.5g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Scale from a quantity to SVG units: `low` is at `begin`, `high` at `end`; logarithmic if
    `log`."""

    low: float = 0.0
    high: float
    begin: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Position of a value in SVG units."""
        if self.log:
            share = math.log10(value / self.low) / math.log10(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(self.begin + share * (self.end - self.begin), 1)


def tick_below(x: float, y: float, text: str) -> Label:
    """The text of a tick below an axis; the last one stays inside the picture."""
    return Label(x=x, y=y, text=text, anchor="end" if x > WIDTH - 20 else "middle")


def level(y: float, text: str) -> tuple[Path, Label]:
    """A horizontal grid line, and the text of its tick."""
    grid = Path(data=line(LEFT, y, WIDTH, y), colour=GRID, width=1)
    return grid, Label(x=LEFT - 8, y=y + 4, text=text, anchor="end")


def even_ticks(end: float, most: int = 8) -> list[float]:
    """At most `most` + 1 ticks from 0 to `end`, in steps of 1, 2 or 5 times a power of ten.

    >>> even_ticks(1.66)
    [0.0, 0.5, 1.0, 1.5]
    """
    least = end / most
    # Below this, a float loses precision and its power of ten may be 0.
    if not least > sys.float_info.min * 10.0:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * 0.999)
    return [i * step for i in range(int(end / step * 1.000001) + 1)]


def apart(wanted: list[float], least: float, low: float, high: float) -> list[float]:
    """Positions near the wanted ones, in the same order, at least `least` from each other.

    Keeps labels of close lines readable. If low to high is too short for all, the distance shrinks.

    >>> apart([10.0, 11.0, 50.0], 12, 0, 100)
    [4.5, 16.5, 50.0]
    """
    if not wanted:
        return []
    least = min(least, (high - low) / len(wanted))
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    groups: list[list[float]] = []  # [sum of offsets from the first, count, position of the first]
    for rank, index in enumerate(order):
        groups.append([wanted[index] - rank * least, 1.0])
        while len(groups) > 1 and groups[-2][0] / groups[-2][1] > groups[-1][0] / groups[-1][1]:
            total, count = groups.pop()
            groups[-1][0] += total
            groups[-1][1] += count
    flat = [total / count for total, count in groups for _ in range(int(count))]
    placed = [0.0] * len(wanted)
    top = high - (len(wanted) - 1) * least
    for rank, index in enumerate(order):
        placed[index] = min(max(flat[rank], low), top) + rank * least
    return placed
