"""Plots of two axes: a scatter of time against cost or memory, and a probability over days."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from profiles.units import format_percent
from shardwright.reports.brief.brief import BLUE, COLOURS, RED
from shardwright.reports.picture import (
    GRID,
    INK,
    Axis,
    Box,
    Entry,
    Label,
    Path,
    Picture,
    even_ticks,
    line,
    tick_below,
)

WIDTH, HEIGHT = 560.0, 350.0
LEFT, RIGHT, TOP, BOTTOM = 94.0, 14.0, 34.0, 62.0
_SIZE = 7.0
_MOST_TICKS = 5
_FEW_DECADES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A mark; `label` is next to it, "" for none; `group` sets color and shape; `title` is its
    tooltip."""

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
        labels.append(tick_below(x, HEIGHT - BOTTOM + 20, across.written(value)))
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

    The label's box has the size of the text on narrow pages, whose letters are larger.
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


_BAND = "#dfe8f3"


def completion_picture(
    probabilities: Sequence[float],
    days: Sequence[float],
    *,
    interval: tuple[float, float, float],
    deadline: float | None = None,
    probability_of_deadline: float | None = None,
) -> Picture:
    """Distribution of the duration with its median, 90 % interval and deadline.

    interval  (low, median, high) in days
    """
    low, middle, high = interval
    right = max(days[-1], high, deadline or 0.0) * 1.06
    across = Axis(high=right, begin=LEFT, end=WIDTH - RIGHT)
    up = Axis(high=1.0, begin=HEIGHT - BOTTOM, end=TOP)
    grid, labels = frame(
        AxisWords(name="days from the start", written=str),
        AxisWords(name="probability that the run has ended", written=str),
    )
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = up.at(share)
        grid.append(Path(data=line(LEFT, y, WIDTH - RIGHT, y), colour=GRID, width=1))
        labels.append(Label(x=LEFT - 8, y=y + 5, text=f"{share:.0%}", anchor="end"))
    for value in even_ticks(right, 6):
        labels.append(tick_below(across.at(value), HEIGHT - BOTTOM + 20, f"{value:.4g}"))
    box = Box(
        x=across.at(low),
        y=TOP,
        width=round(across.at(high) - across.at(low), 1),
        height=HEIGHT - BOTTOM - TOP,
        colour=_BAND,
        title=f"90 % interval: {low:.3g} to {high:.3g} days",
    )
    spots = [(across.at(0.0), up.at(0.0))]
    spots += [
        (across.at(day), up.at(share)) for day, share in zip(days, probabilities, strict=True)
    ]
    paths = [
        Path(
            data="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in spots),
            colour=BLUE,
            width=2.5,
            title="probability that the run has ended",
        ),
        Path(
            data=line(across.at(middle), up.at(0.0), across.at(middle), up.at(0.5)),
            colour=INK,
            width=1.4,
        ),
    ]
    key = [
        Entry(name=f"median {middle:.3g} days", colour=INK, shape="line"),
        Entry(name=f"90 % interval, {low:.3g} to {high:.3g} days", colour=_BAND),
    ]
    if deadline is not None:
        x = across.at(deadline)
        paths.append(Path(data=line(x, up.at(0.0), x, TOP), colour=RED, dashed=True, width=1.8))
        text = f"deadline, {deadline:.3g} days"
        if probability_of_deadline is not None:
            text += f": probability {format_percent(probability_of_deadline)}"
        key.append(Entry(name=text, colour=RED, shape="dash"))
    return Picture(
        name="completion",
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        grid=tuple(grid),
        boxes=(box,),
        paths=tuple(paths),
        labels=tuple(labels),
        key=tuple(key),
    )
