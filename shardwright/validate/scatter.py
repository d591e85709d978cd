"""A log-log scatter of predicted against measured as an SVG with its key, everything escaped."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

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

    def rule(factor: float) -> str:
        """The line predicted = factor x measured, cut where it leaves the picture."""
        begin, end = 10.0**low * max(1.0, 1 / factor), 10.0**high * min(1.0, 1 / factor)
        dashes = ' stroke-dasharray="4 4"' if factor != 1.0 else ""
        return (
            f'<line x1="{across(begin)}" y1="{down(begin * factor)}" x2="{across(end)}" '
            f'y2="{down(end * factor)}" stroke="#8a97a5"{dashes}/>'
        )

    def tick(value: float) -> str:
        """A power of ten on both axes, with its grid lines."""
        place, height, text = across(value), down(value), escape(label(value))
        return (
            f'<line x1="{place}" x2="{place}" y1="{_TOP}" y2="{_BOTTOM}" stroke="#eef1f4"/>'
            f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{height}" y2="{height}" stroke="#eef1f4"/>'
            f'<text x="{place}" y="{_BOTTOM + 15}" text-anchor="middle">{text}</text>'
            f'<text x="{_LEFT - 6}" y="{height + 4}" text-anchor="end">{text}</text>'
        )

    counts = Counter(sample.group for sample in samples)
    names = sorted(counts, key=lambda name: (-counts[name], name))
    colours = dict(zip(names, (*_COLOURS, *[_REST] * len(names)), strict=False))
    middle = (_TOP + _BOTTOM) / 2
    drawn = [
        f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" width="{_WIDTH:g}" role="img" '
        f'aria-label="{escape(title)}">',
        *(tick(10.0**power) for power in range(low, high + 1)),
        *(rule(factor) for factor in (1.0, _OFF, 1 / _OFF)),
        *(
            f'<circle cx="{across(s.measured)}" cy="{down(s.predicted)}" r="3" '
            f'fill="{colours[s.group]}" fill-opacity=".55">'
            f"<title>{escape(s.title)}</title></circle>"
            for s in samples
        ),
        f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_HEIGHT - 4}" text-anchor="middle">measured</text>'
        f'<text x="12" y="{middle}" transform="rotate(-90 12 {middle})" text-anchor="middle">'
        "predicted</text></svg>",
    ]
    key = "".join(
        f'<span><i style="background:{colours[name]}"></i>{escape(name)} ({counts[name]})</span>'
        for name in names
    )
    return "\n".join(drawn) + f'\n<div class="key">{key}</div>'
