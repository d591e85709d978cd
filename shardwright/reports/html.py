"""Templates of HTML pages: self-contained files, everything escaped.

Pictures are plain values (reports/picture.py) that a template draws as inline SVG; only templates
contain markup.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from profiles.units import format_bytes, format_percent, format_time


@functools.cache
def template(name: str, folder: Path | None = None) -> Any:
    """A page of this folder, or of a plug-in's folder; it includes the style of this folder."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*([folder] if folder else []), Path(__file__).parent]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"time": format_time, "bytes": format_bytes, "percent": format_percent}
    return environment.get_template(name)


def fact(name: str, value: str, note: str) -> dict[str, str]:
    """One of the large numbers at the top of a page."""
    return {"name": name, "value": value, "note": note}
