"""Parts of a report as markup of their own, for pages that put them together: everything escaped.

They stand in elements of the class `shardwright`, which `parts_style` styles and nothing else; they
take the text's colour from what is around them, so that they suit light and dark pages.
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
    """The large numbers, each with its interval."""
    return _wrapped(_parts().facts(facts))


def section_html(section: Section) -> str:
    """Bars, tables and the note of a section; its pictures are `pictures_html`."""
    return _wrapped(_parts().inside(section))


def pictures_html(pictures: Sequence[Picture]) -> str:
    """Pictures side by side where there is room."""
    return _wrapped(_parts().pictures(pictures))


def picture_html(picture: Picture) -> str:
    """One picture as wide as there is room."""
    return _wrapped(_parts().wide(picture))


def words_html(kind: str, text: str) -> str:
    """A text of its own: `headline`, `sub`, `note`, `told` (a message in a box), or `fault`, which
    screen readers announce."""
    return _wrapped(_parts().words(kind, text))


@functools.cache
def parts_style() -> str:
    """A style element; what it says holds inside the class `shardwright` only (CSS nesting)."""
    files = ("page_style.css", "brief/brief.css", "brief/brief_parts.css")
    said = "\n".join((_REPORTS / name).read_text(encoding="utf-8") for name in files)
    return f"<style>\n.shardwright {{\n{said}\n}}\n</style>"


@functools.cache
def _parts() -> Any:
    names = {"bars_of": bars_of, "ticks_of": ticks_of, "place": place}
    return template("brief/brief_parts.html.j2").make_module(names)


def _wrapped(markup: object) -> str:
    return f'<div class="shardwright">{markup}</div>'
