"""A log-log scatter of predicted against measured, as plain values for an SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT = 780.0, 620.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 74.0, 744.0, 10.0, 570.0
_OFF = 1.2
# Colours that stay apart for common colour blindness (Okabe and Ito 2008, jfly.uni-koeln.de/color).
_COLOURS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#56b4e9",
    "#8c7a00",
)
_REST = "#777777"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A point before it has a place: both values are above 0."""

    group: str
    measured: float
    predicted: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A circle."""

    x: float
    y: float
    colour: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A straight line between two points."""

    x1: float
    y1: float
    x2: float
    y2: float
    dashed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A power of ten on both axes: its x, its y and what it says."""

    place: float
    height: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A colour of the key: the group's name and its number of points."""

    name: str
    colour: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """The whole picture in SVG units; `top` is above `bottom`, y grows downwards."""

    title: str
    points: tuple[Point, ...]
    lines: tuple[Line, ...]
    ticks: tuple[Tick, ...]
    key: tuple[Key, ...]
    width: float = _WIDTH
    height: float = _HEIGHT
    left: float = _LEFT
    right: float = _RIGHT
    top: float = _TOP
    bottom: float = _BOTTOM


def scatter(title: str, samples: Sequence[Sample], label: Callable[[float], str]) -> Scatter | None:
    """The picture of the samples, or None where there are none.

    The largest groups have colours of their own, the others share a grey; the axes are equal and
    end at powers of ten. `label` formats a tick's value.
    """
    if not samples:
        return None
    values = [value for s in samples for value in (s.measured, s.predicted)]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)

    def across(value: float) -> float:
        return round(_LEFT + (math.log10(value) - low) / (high - low) * (_RIGHT - _LEFT), 1)

    def down(value: float) -> float:
        return round(_BOTTOM - (math.log10(value) - low) / (high - low) * (_BOTTOM - _TOP), 1)

    def rule(factor: float) -> Line:
        """The line predicted = factor x measured, cut where it leaves the picture."""
        begin, end = 10.0**low * max(1.0, 1 / factor), 10.0**high * min(1.0, 1 / factor)
        return Line(
            x1=across(begin),
            y1=down(begin * factor),
            x2=across(end),
            y2=down(end * factor),
            dashed=factor != 1.0,
        )

    counts: dict[str, int] = {}
    for sample in samples:
        counts[sample.group] = counts.get(sample.group, 0) + 1
    names = sorted(counts, key=lambda name: (-counts[name], name))
    colours = dict(zip(names, (*_COLOURS, *[_REST] * len(names)), strict=False))
    return Scatter(
        title=title,
        points=tuple(
            Point(x=across(s.measured), y=down(s.predicted), colour=colours[s.group], title=s.title)
            for s in samples
        ),
        lines=tuple(rule(factor) for factor in (1.0, _OFF, 1 / _OFF)),
        ticks=tuple(
            Tick(place=across(10.0**power), height=down(10.0**power), label=label(10.0**power))
            for power in range(low, high + 1)
        ),
        key=tuple(Key(name=name, colour=colours[name], count=counts[name]) for name in names),
    )
