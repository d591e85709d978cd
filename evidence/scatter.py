"""A log-log scatter of predicted against measured as an SVG with its key, everything escaped."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardwright.reports.html import template

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


def scatter_svg(title: str, samples: Sequence[Sample], label: Callable[[float], str]) -> str:
    """The picture of the samples, of which there is at least one.

    The largest groups have colours of their own, the others share a grey; the axes are equal and
    end at powers of ten. `label` formats a tick's value.
    """
    values = [value for s in samples for value in (s.measured, s.predicted)]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)

    def across(value: float) -> float:
        return round(_LEFT + (math.log10(value) - low) / (high - low) * (_RIGHT - _LEFT), 1)

    def down(value: float) -> float:
        return round(_BOTTOM - (math.log10(value) - low) / (high - low) * (_BOTTOM - _TOP), 1)

    def rule(factor: float) -> tuple[float, float, float, float, bool]:
        """The line predicted = factor x measured, cut where it leaves the picture."""
        begin, end = 10.0**low * max(1.0, 1 / factor), 10.0**high * min(1.0, 1 / factor)
        ends = across(begin), down(begin * factor), across(end), down(end * factor)
        return (*ends, factor != 1.0)

    counts = Counter(sample.group for sample in samples)
    names = sorted(counts, key=lambda name: (-counts[name], name))
    colours = dict(zip(names, (*_COLOURS, *[_REST] * len(names)), strict=False))
    powers = [10.0**power for power in range(low, high + 1)]
    return str(
        template("scatter.svg.j2").render(
            title=title,
            width=_WIDTH,
            height=_HEIGHT,
            left=_LEFT,
            right=_RIGHT,
            top=_TOP,
            bottom=_BOTTOM,
            ticks=[(across(value), down(value), label(value)) for value in powers],
            rules=[rule(factor) for factor in (1.0, _OFF, 1 / _OFF)],
            points=[
                (across(s.measured), down(s.predicted), colours[s.group], s.title) for s in samples
            ],
            key=[(name, colours[name], counts[name]) for name in names],
        )
    )
