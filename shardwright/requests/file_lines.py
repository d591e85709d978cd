"""`with_lines`: add the lines of a TOML file to a message about its entries."""

from __future__ import annotations

import re
from pathlib import Path

_ENTRY = re.compile(r"\b([a-z_]+)\[(\d+)\](?:\.([\w-]+))?")
_QUOTED = re.compile(r"'([^']+)'")
_KEY = re.compile(r"^\s*(\[|[\w-]+\s*=)")


def with_lines(message: str, path: Path, text: str) -> str:
    """The message with the line of every `table[number].key` in it that the file contains.

    In a list over several lines: the line of the first value that the message quotes.

    >>> with_lines("job[0].tokens: no unit", Path("a.toml"), "[[job]]\\ntokens = '1'")
    'a.toml, line 2: job[0].tokens: no unit'
    """
    lines = text.splitlines()
    quoted = _QUOTED.search(message)

    def placed(match: re.Match[str]) -> str:
        table, number, key = match.group(1), int(match.group(2)), match.group(3)
        heads = [i for i, line in enumerate(lines) if line.strip().startswith(f"[[{table}]]")]
        if number >= len(heads):
            return match.group(0)
        first, end = _entry(lines, heads[number], table, key or "")
        if quoted:
            word = re.compile(rf"(?<![\w-]){re.escape(quoted.group(1))}(?![\w-])")
            first = next((i for i in range(first, end) if word.search(lines[i])), first)
        return f"line {first + 1}: {match.group(0)}"

    message = message.replace(f"{path}: ", "")
    said = _ENTRY.sub(placed, message)
    if said.startswith(f"{path} "):
        return said
    return f"{path}, {said}" if said.startswith("line ") else f"{path}: {said}"


def _entry(lines: list[str], head: int, table: str, key: str) -> tuple[int, int]:
    """The first line of a key of the table that begins at `head`, and the line after its value;
    without the key, those of the whole table."""
    others = (i for i in range(head + 1, len(lines)) if lines[i].strip().startswith("[["))
    end = next((i for i in others if f"[[{table}." not in lines[i]), len(lines))
    for index in range(head + 1, end):
        if key and re.match(rf"\s*{re.escape(key)}\s*=", lines[index]):
            after = (i for i in range(index + 1, end) if _KEY.match(lines[i]))
            return index, next(after, end)
    return head, end
