"""Shipped code is written in plain English, not in the private dialect that the project grew.

The dialect uses verbs of speech and relative clauses in place of nouns ("what was asked", "those
that lack memory", "a file of its own"). `PROSE` and `NAMES` list its words. The file
`plain_english_ceilings.txt` lists folders that still contain some, with the number of uses allowed.
Any other folder must have none. A number in that file may only be lowered. To print the current
numbers, run `python -m tests.architecture.test_plain_english`.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.sources import PACKAGES, ROOT, source_names

CEILINGS = Path(__file__).with_name("plain_english_ceilings.txt")

# Dialect in docstrings and comments.
PROSE = re.compile(
    r"\b(asks?|asked|asking|tells?|told|says?|said|shown|meant|beside|stands?|lies|lacks?|lacking"
    r"|what(?!-if)|else|of (its|their|one's) own|those (that|which|whose)|such an?)\b",
    re.IGNORECASE,
)
# Dialect as a word in the name of a module, class, function or argument.
NAMES = re.compile(
    r"_(asks?|asked|asker|asking|tells?|told|says?|said|shown|found|findings|meant|beside|stands?"
    r"|lies|lacks?|lacking|what|else|ground|far|ideals?)(?=_)"
)


def dialect(path: Path, source: str) -> list[tuple[int, str]]:
    """Line and text of every use of the dialect in a module."""
    names = [(1, path.stem), *source_names(source).defined]
    snake = re.compile(r"(?<=[a-z])(?=[A-Z])")
    uses = [each for each in names if NAMES.search(f"_{snake.sub('_', each[1]).lower()}_")]
    for start, text in _prose(source):
        for use in PROSE.finditer(re.sub(r"`[^`\n]*`", lambda quoted: "_" * len(quoted[0]), text)):
            line = start + text.count("\n", 0, use.start())
            uses.append((line, text.splitlines()[line - start].strip()))
    return sorted(uses)


def _prose(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings, of fields too, and comments."""
    yield from source_names(source).texts
    if not re.search(rf"#.*{PROSE.pattern}", source, re.IGNORECASE):
        return  # no comment with a word of the dialect: need not be split into tokens
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def uses_by_folder() -> dict[str, list[str]]:
    """Lines "file:line: text" of every use, by folder."""
    uses = defaultdict(list)
    for root in (*PACKAGES, "plugins"):
        for path in sorted((ROOT / root).rglob("*.py")):
            name = path.relative_to(ROOT)
            if "tests" not in name.parts:
                for line, text in dialect(name, path.read_text(encoding="utf-8")):
                    uses[str(name.parent)].append(f"{name}:{line}: {text}")
    return dict(uses)


def ceilings() -> dict[str, int]:
    """Number of uses allowed, by folder."""
    lines = CEILINGS.read_text(encoding="utf-8").splitlines()
    return {folder: int(count) for folder, count in map(str.split, lines)}


def test_no_folder_exceeds_its_ceiling() -> None:
    allowed = ceilings()
    faults = []
    for folder, uses in uses_by_folder().items():
        if len(uses) > allowed.get(folder, 0):
            faults += [f"{folder}: {len(uses)} uses, at most {allowed.get(folder, 0)}", *uses]
    assert not faults, "\n".join(faults)


def test_the_check_finds_names_docstrings_and_comments() -> None:
    source = '''def price_told(meant: int, ask_s: float) -> None:
    """Time in s.

    Those that lack it; see `what`.
    """
    # A file of its own.
'''
    assert dialect(Path("x/asked.py"), source) == [
        (1, "ask_s"),
        (1, "asked"),
        (1, "meant"),
        (1, "price_told"),
        (4, "Those that lack it; see `what`."),
        (4, "Those that lack it; see `what`."),
        (6, "# A file of its own."),
    ]
    assert dialect(Path("x/farm.py"), '"""Estimated times of a task."""') == []


if __name__ == "__main__":
    print("\n".join(f"{folder} {len(uses)}" for folder, uses in uses_by_folder().items()))
