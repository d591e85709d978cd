"""A brief as one self-contained HTML page: no scripts or external resources, all text escaped.

Parts of a brief are separate fragments for the web page, each an element of the class `shardwright`
(styled by `parts_style`). They inherit the text color, so they suit light and dark pages.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from profiles.units import format_bytes, format_time, format_usd
from shardwright.reports.brief.brief import BarChart, Brief, Fact, Section
from shardwright.reports.html import template
from shardwright.reports.picture import Picture, even_ticks

WRITTEN: dict[str, Callable[[float], str]] = {
    "dollars": format_usd,
    "GiB": lambda value: f"{value:.3g}",
    "bytes": format_bytes,
    "time": format_time,
}


def brief_html(brief: Brief) -> str:
    """The HTML of the whole page."""
    return str(
        template("brief/brief.html.j2").render(
            brief=brief, bars_of=bars_of, ticks_of=ticks_of, place=place
        )
    )


def bars_of(chart: BarChart) -> list[dict[str, object]]:
    """Every bar in percent of the axis, at least as wide as a visible line."""
    low, high = chart.ends
    bars = []
    for bar in chart.bars:
        left, right = sorted((place(bar.low, low, high), place(bar.high, low, high)))
        wide = max(right - left, 0.6)
        bars.append(
            {
                "name": bar.name,
                "words": bar.words,
                "colour": bar.colour,
                "left": round(min(left, 100 - wide), 2),
                "width": round(wide, 2),
            }
        )
    return bars


def ticks_of(chart: BarChart) -> list[tuple[float, str]]:
    """(position in percent, text) of the axis' ticks: four or five round values."""
    low, high = chart.ends
    written = WRITTEN.get(chart.unit, "{:.4g}".format)
    steps = even_ticks(high - low, 4)
    step = steps[1] if len(steps) > 1 else high - low
    first = -(-low // step)
    values = [step * (first + k) for k in range(6) if low <= step * (first + k) <= high]
    return [(round(place(value, low, high), 2), written(value)) for value in values]


def place(value: float, low: float, high: float) -> float:
    """Position of a value between low (0) and high (100)."""
    return 100.0 * (value - low) / (high - low)


_REPORTS = Path(__file__).parents[1]


def facts_html(facts: Sequence[Fact]) -> str:
    """The key figures, each with its interval."""
    return _wrapped(_parts().facts(facts))


def section_html(section: Section) -> str:
    """Bars, tables and note of a section, without its pictures (`pictures_html`)."""
    return _wrapped(_parts().inside(section))


def pictures_html(pictures: Sequence[Picture]) -> str:
    """Pictures side by side if there is room."""
    return _wrapped(_parts().pictures(pictures))


def words_html(kind: str, text: str) -> str:
    """A text of the CSS class `headline`, `sub`, `note`, `told` (a message in a box), or `fault`
    (announced by screen readers)."""
    return _wrapped(_parts().words(kind, text))


@functools.cache
def parts_style() -> str:
    """A style element, limited to the class `shardwright` by CSS nesting."""
    files = ("page_style.css", "brief/brief.css", "brief/brief_parts.css")
    styles = "\n".join((_REPORTS / name).read_text(encoding="utf-8") for name in files)
    return f"<style>\n.shardwright {{\n{styles}\n}}\n</style>"


@functools.cache
def _parts() -> Any:
    names = {"bars_of": bars_of, "ticks_of": ticks_of, "place": place}
    return template("brief/brief_parts.html.j2").make_module(names)


def _wrapped(markup: object) -> str:
    return f'<div class="shardwright">{markup}</div>'
