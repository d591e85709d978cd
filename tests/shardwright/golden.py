"""Golden files: texts that a test compares with a file in tests/golden, or writes on request."""

from __future__ import annotations

import os
from html.parser import HTMLParser
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "golden"
FLAG = "SHARDWRIGHT_WRITE_GOLDEN"


def check_golden(name: str, found: str) -> None:
    """Fail where the text differs from the golden file; with FLAG set, write it and skip."""
    path = FOLDER / name
    if os.environ.get(FLAG):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
        pytest.skip(f"{name} written because {FLAG} is set")
    assert path.is_file(), f"{path} is missing; write it with {FLAG}=1"
    assert found == path.read_text(encoding="utf-8"), f"{name} differs; {FLAG}=1 writes it anew"


class Structure(HTMLParser):
    """What a page says and how it is built, without its styles: one line per part.

    Headings, the first cell of every row, table heads, marks per picture, keys, commands.
    """

    _HEADINGS = ("h1", "h2", "h3")

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._open: list[str] = []
        self._cells: list[str] = []
        self._row: str | None = None
        self._marks: dict[str, int] = {}
        self._key = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        known = dict(attributes)
        if tag in self._HEADINGS or tag in ("pre", "th"):
            self._open.append("")
        elif tag == "tr":
            self._cells, self._row = [], None
        elif tag == "td" and self._row is None:
            self._open.append("")
        elif tag == "svg":
            self._marks = {}
            self.lines.append(f"  picture {known['id']}")
        elif tag in ("rect", "path", "text"):
            kind = f"{tag}.{known['class']}" if known.get("class") else tag
            self._marks[kind] = self._marks.get(kind, 0) + 1
        elif tag == "div":
            self._key = known.get("class") == "key"
        elif tag == "span" and self._key:
            self._open.append("")

    def handle_data(self, data: str) -> None:
        if self._open:
            self._open[-1] += data

    def handle_endtag(self, tag: str) -> None:
        if tag in self._HEADINGS:
            self.lines.append(f"{tag} {self._open.pop().strip()}")
        elif tag == "pre":
            self.lines += [f"  $ {line}" for line in self._open.pop().strip().splitlines()]
        elif tag == "th":
            self._cells.append(self._open.pop().strip())
        elif tag == "td" and self._row is None and self._open:
            self._row = self._open.pop().strip()
            self.lines.append(f"  row {self._row}")
        elif tag == "tr" and self._cells:
            self.lines.append("  head " + " | ".join(self._cells))
        elif tag == "svg":
            counts = ", ".join(f"{count} {kind}" for kind, count in sorted(self._marks.items()))
            self.lines.append(f"    {counts}")
        elif tag == "div":
            self._key = False
        elif tag == "span" and self._key:
            self.lines.append(f"  key {self._open.pop().strip()}")


def structure_of(page: str) -> str:
    """The page's structure as text."""
    parser = Structure()
    parser.feed(page)
    return "\n".join(parser.lines) + "\n"
