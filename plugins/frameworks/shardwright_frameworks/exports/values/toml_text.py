"""`toml_text`: plain values as TOML, which the standard library reads but does not write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def toml_text(data: Mapping[str, object]) -> str:
    """Tables in their order; keys of a table come before its tables.

    >>> print(toml_text({"a": {"x": 1, "y": ["b", "c"], "t": {"z": True}}}))
    [a]
    x = 1
    y = ["b", "c"]
    <BLANKLINE>
    [a.t]
    z = true
    <BLANKLINE>
    """
    blocks: list[str] = []
    _write(blocks, (), data)
    return "\n".join(blocks)


def _write(blocks: list[str], path: tuple[str, ...], table: Mapping[str, object]) -> None:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if plain:
        head = [f"[{'.'.join(path)}]"] if path else []
        lines = [f"{key} = {_value(value)}" for key, value in plain.items()]
        blocks.append("\n".join([*head, *lines]) + "\n")
    for key, value in table.items():
        if isinstance(value, Mapping):
            _write(blocks, (*path, key), value)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        if any(isinstance(item, (list, tuple)) for item in value):
            return "[\n" + "".join(f"  {_value(item)},\n" for item in value) + "]"
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, (int, float)):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=False)
