"""Parts of a report as separate HTML fragments for the web page, with all text escaped.

Each is an element of the class `shardwright`, styled by `parts_style`. They inherit the text color,
so they suit light and dark pages.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardwright.reports.brief.brief import Fact, Section
from shardwright.reports.brief.brief_html import bars_of, place, ticks_of
from shardwright.reports.html import template
from shardwright.reports.picture import Picture

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
