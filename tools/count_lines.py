"""Prints the number of lines of Python, and of code, in each part of the repository.

    python -m tools.count_lines

Code is what is neither blank, comment nor docstring. A string that is a statement of its own counts
as a docstring.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = {
    "core": ("profiles", "simulator", "planner", "executor", "shardwright"),
    "plug-ins without tests": ("plugins/*/shardwright_*",),
    "evidence, bench, tools, examples": ("evidence", "bench", "tools", "examples"),
    "tests": ("tests", "plugins/*/tests", "plugins/test_*.py"),
}
_NO_CODE = frozenset(
    (
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
        *(tokenize.ENCODING, tokenize.ENDMARKER),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineCount:
    """Lines of Python files, and those of them that are code."""

    lines: int = 0
    code: int = 0

    def __add__(self, other: LineCount) -> LineCount:
        return LineCount(lines=self.lines + other.lines, code=self.code + other.code)


def count_lines(source: str) -> LineCount:
    """The lines of one file; raises SyntaxError if it is no Python."""
    lines = source.splitlines()
    numbers: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            numbers.update(range(token.start[0], token.end[0] + 1))
    numbers -= set(_docstring_lines(source))
    code = sum(bool(lines[number - 1].strip()) for number in numbers)
    return LineCount(lines=len(lines), code=code)


def _docstring_lines(source: str) -> Iterator[int]:
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def count_paths(patterns: Iterable[str], root: Path = ROOT) -> LineCount:
    """The lines of all Python files in the folders, and of the files, that match a pattern."""
    total = LineCount()
    for pattern in patterns:
        for found in sorted(root.glob(pattern)):
            for path in [found] if found.is_file() else found.rglob("*.py"):
                total += count_lines(path.read_text(encoding="utf-8"))
    return total


def main() -> None:
    """Prints the table."""
    counts = {name: count_paths(patterns) for name, patterns in PARTS.items()}
    outside = sum((count for name, count in counts.items() if name != "tests"), LineCount())
    counts["all outside tests"] = outside
    width = max(map(len, counts))
    sys.stdout.write(f"{'':{width}}  Python    code\n")
    for name, count in counts.items():
        sys.stdout.write(f"{name:{width}}  {count.lines:6,}  {count.code:6,}\n")


if __name__ == "__main__":
    main()
