"""Scatter plot with two logarithmic axes, for time against cost or memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardwright.reports.brief.brief import COLOURS
from shardwright.reports.picture import (
    GRID,
    INK,
    Axis,
    Entry,
    Label,
    Path,
    Picture,
    even_ticks,
    line,
)

WIDTH, HEIGHT = 560.0, 350.0
LEFT, RIGHT, TOP, BOTTOM = 94.0, 14.0, 34.0, 62.0
_SIZE = 7.0
_MOST_TICKS = 5
_FEW_DECADES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A mark; label  next to it, "" for none;  group  sets color and shape;  title  on hover."""

    x: float
    y: float
    group: str
    label: str = ""
    title: str = ""
    chosen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisWords:
    """Name of an axis with its unit, and the formatter of its ticks."""

    name: str
    written: Callable[[float], str]


def scatter(
    name: str, points: Sequence[Point], across: AxisWords, up: AxisWords, *, note: str = ""
) -> Picture | None:
    """The plot, with a ring around the chosen point; None without positive points."""
    points = [one for one in points if one.x > 0 and one.y > 0]
    if not points:
        return None
    x_axis = log_axis([one.x for one in points], LEFT, WIDTH - RIGHT)
    y_axis = log_axis([one.y for one in points], HEIGHT - BOTTOM, TOP)
    groups = list(dict.fromkeys(one.group for one in points))
    grid, labels = frame(across, up)
    for value in log_ticks(x_axis):
        x = x_axis.at(value)
        grid.append(Path(data=line(x, TOP, x, HEIGHT - BOTTOM), colour=GRID, width=1))
        labels.append(
            Label(x=x, y=HEIGHT - BOTTOM + 20, text=across.written(value), anchor="middle")
        )
    for value in log_ticks(y_axis):
        y = y_axis.at(value)
        grid.append(Path(data=line(LEFT, y, WIDTH - RIGHT, y), colour=GRID, width=1))
        labels.append(Label(x=LEFT - 8, y=y + 5, text=up.written(value), anchor="end"))
    marks: list[Path] = []
    taken: list[tuple[float, float, float, float]] = [
        (x_axis.at(one.x) - 9, y_axis.at(one.y) - 9, x_axis.at(one.x) + 9, y_axis.at(one.y) + 9)
        for one in points
    ]
    for one in sorted(points, key=lambda one: not one.chosen):
        x, y = x_axis.at(one.x), y_axis.at(one.y)
        number = groups.index(one.group)
        colour = COLOURS[number % len(COLOURS)]
        kind = _SHAPES[number % len(_SHAPES)]
        marks.append(Path(data=mark(kind, x, y), colour=colour, filled=True, title=one.title))
        if one.chosen:
            marks.append(Path(data=_polygon(x, y, _SIZE + 6, 24), colour=INK, width=2))
        if one.label and (placed := _placed(one, x, y, taken)) is not None:
            labels.append(placed)
    return Picture(
        name=name,
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        grid=tuple(grid),
        paths=tuple(marks),
        labels=tuple(labels),
        key=tuple(
            Entry(name=group, colour=COLOURS[n % len(COLOURS)], shape=_SHAPES[n % len(_SHAPES)])
            for n, group in enumerate(groups)
        ),
        note=note,
    )


def frame(across: AxisWords, up: AxisWords) -> tuple[list[Path], list[Label]]:
    """Lines and names of both axes."""
    foot = HEIGHT - BOTTOM
    lines = [
        Path(data=line(LEFT, foot, WIDTH - RIGHT, foot), colour=INK, width=1),
        Path(data=line(LEFT, TOP, LEFT, foot), colour=INK, width=1),
    ]
    names = [
        Label(x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 14, text=across.name, anchor="middle"),
        Label(x=8, y=18, text=up.name),
    ]
    return lines, names


_SHAPES = ("ring", "square", "diamond", "ring", "square", "diamond")


def mark(shape: str, x: float, y: float, size: float = _SIZE) -> str:
    """Path data of a ring, a square or a diamond, as a polygon."""
    if shape == "ring":
        return _polygon(x, y, size, 20)
    return _polygon(x, y, size * 1.2, 4, 0.0 if shape == "diamond" else math.pi / 4)


def _polygon(x: float, y: float, radius: float, corners: int, turn: float = 0.0) -> str:
    spots = [
        (
            x + radius * math.cos(turn + 2 * math.pi * k / corners),
            y + radius * math.sin(turn + 2 * math.pi * k / corners),
        )
        for k in range(corners)
    ]
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in spots) + "Z"


def log_axis(values: list[float], begin: float, end: float) -> Axis:
    """A logarithmic axis with room around positive values."""
    low, high = min(values), max(values)
    room = max(1.15, (high / low) ** 0.12)
    return Axis(low=low / room, high=high * room, begin=begin, end=end, log=True)


def log_ticks(axis: Axis) -> list[float]:
    """At most _MOST_TICKS round values within a logarithmic axis."""
    if axis.high < _FEW_DECADES * axis.low:
        # On a short axis even steps look almost even on a logarithmic scale too.
        steps = even_ticks(axis.high - axis.low, _MOST_TICKS)
        step = steps[1] if len(steps) > 1 else axis.high
        first = math.ceil(axis.low / step)
        return [step * k for k in range(first, int(axis.high / step) + 1)]
    decades = range(math.floor(math.log10(axis.low)) - 1, math.ceil(math.log10(axis.high)) + 1)
    best: list[float] = []
    for heads in ((1,), (1, 3), (1, 2, 5)):
        values = (head * 10.0**power for power in decades for head in heads)
        inside = [value for value in values if axis.low <= value <= axis.high]
        if len(inside) > _MOST_TICKS:
            break
        best = inside
    return best


def _placed(
    one: Point, x: float, y: float, taken: list[tuple[float, float, float, float]]
) -> Label | None:
    """The label in the first free place: right, left, above, below; None if there is no room.

    The size is that of the larger letters on narrow pages.
    """
    wide, high = 9.5 * len(one.label), 18.0
    spots = (
        (x + 13, y + 5, "start", x + 13),
        (x - 13, y + 5, "end", x - 13 - wide),
        (x, y - 14, "middle", x - wide / 2),
        (x, y + 26, "middle", x - wide / 2),
    )
    for at_x, at_y, anchor, left in spots:
        box = (left, at_y - high + 4, left + wide, at_y + 4)
        inside = box[0] > LEFT and box[2] < WIDTH and box[1] > 20 and box[3] < HEIGHT - BOTTOM
        if inside and not any(_overlap(box, other) for other in taken):
            taken.append(box)
            return Label(x=at_x, y=at_y, text=one.label, anchor=anchor, strong=one.chosen)
    return None


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
