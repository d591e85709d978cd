"""Resolves references in the values of a configuration: OmegaConf's `${model.hidden_size}`,
`${.sibling}`, `${multiply:4, ${.hidden_size}}`, `${oc.env:NAME,default}`, and `???` for a value
required from the command line (omegaconf.readthedocs.io, 2.3; NeMo's and MLPerf's resolvers of
arithmetic).

An environment variable has the value exported by the script that starts the run, otherwise the
default in the reference (with the shell's `${NAME:-default}` also for an empty text). References
inside a variable's text are not resolved. An unknown value is `Open`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardwright_frameworks.shell.config_folder import Environment
from shardwright_frameworks.shell.text_marks import UnknownValue

Key = tuple[str, ...]
_MOST_DEEP = 12
_MOST_FOLLOWED = 1000
_NUMBER = re.compile(r"[-+]?(\d[\d_]*)(\.\d*)?([eE][-+]?\d+)?")
_ENVIRONMENT = re.compile(r"[A-Z][A-Z0-9_]*")
_WORDS = {"true": True, "false": False, "null": None, "none": None}


@dataclass(frozen=True, slots=True)
class Open:
    """An unknown value, with the reason."""

    why: str


class _OpenError(Exception):
    """Raised if part of a value is unknown."""


@dataclass(slots=True)
class _Source:
    """The values and variables for references, and the remaining number of texts to follow."""

    values: Mapping[Key, Any]
    environment: Environment
    left: int = _MOST_FOLLOWED


def plain_value(text: str) -> Any:
    """The number, if the text is one in YAML 1.2 (`1e-4`, a text in YAML 1.1)."""
    found = _NUMBER.fullmatch(text)
    if found is None or len(text) > 40:
        return text
    number = text.replace("_", "")
    return float(number) if found[2] or found[3] else int(number)


def resolved(path: Key, values: Mapping[Key, Any], environment: Environment) -> Any:
    """The value at a path with all references resolved; `Open` if one of them is unknown."""
    raw = values.get(path)
    if not isinstance(raw, str) or ("${" not in raw and raw.strip() != "???"):
        return raw
    try:
        return _text(raw, path, _Source(values, environment), 0)
    except _OpenError as error:
        return Open(str(error))


def _text(raw: str, path: Key, source: _Source, depth: int) -> Any:
    """The value of a text with references. A text that is one reference has its value, of any type;
    in other texts, references are replaced by their values as text."""
    if raw.strip() == "???":
        raise _OpenError("??? has to be filled in by the command line")
    if depth > _MOST_DEEP:
        raise _OpenError(f"{raw!r} is circular")
    source.left -= 1
    if source.left < 0:
        raise _OpenError(f"more than {_MOST_FOLLOWED} references are to be followed")
    pieces: list[Any] = []
    at = 0
    while (begin := raw.find("${", at)) >= 0:
        end = _closing(raw, begin + 2)
        if end < 0:
            raise _OpenError(f"{raw!r} has no closing brace")
        if begin > at:
            pieces.append(raw[at:begin])
        pieces.append(_one(raw[begin + 2 : end], path, source, depth + 1))
        at = end + 1
    if raw[at:].strip() or not pieces:
        pieces.append(raw[at:])
    return pieces[0] if len(pieces) == 1 else "".join(str(piece) for piece in pieces)


def _closing(text: str, at: int) -> int:
    deep = 0
    for place in range(at, len(text)):
        if text[place] == "{":
            deep += 1
        elif text[place] == "}":
            if not deep:
                return place
            deep -= 1
    return -1


def _one(inner: str, path: Key, source: _Source, depth: int) -> Any:
    """The value of the text between braces: a resolver with arguments, a variable, or a key."""
    name, colon, rest = inner.partition(":")
    name = name.strip()
    if not colon and _ENVIRONMENT.fullmatch(name.partition(",")[0]) and "," in name:
        name, colon, rest = "oc.env", ":", inner
    filled = False
    if colon and _ENVIRONMENT.fullmatch(name):
        # `${TP:-8}` is the shell's way of a default, for an empty variable too.
        filled = rest.startswith("-")
        name, rest = "oc.env", f"{name},{rest.removeprefix('-')}"
    if not colon:
        return _key(_joined(inner, path, source, depth), path, source, depth)
    arguments = _arguments(rest)
    if name == "oc.env":
        written = source.environment.get(arguments[0].strip())
        if isinstance(written, UnknownValue):
            raise _OpenError(written.reason)
        if written is not None and (written or not filled):
            return _word(written)
        if len(arguments) < 2:
            raise _OpenError(f"the environment variable {arguments[0]} is not set in the files")
        return _argument(",".join(arguments[1:]), path, source, depth)
    if name == "oc.decode":
        return _argument(rest, path, source, depth)
    if name == "oc.select":
        try:
            return _key(arguments[0].strip(), path, source, depth)
        except _OpenError:
            if len(arguments) < 2:
                raise
            return _argument(arguments[1], path, source, depth)
    if name == "if" and len(arguments) == 3:
        taken = arguments[1 if _argument(arguments[0], path, source, depth) else 2]
        return _argument(taken, path, source, depth)
    made = _RESOLVERS.get(name)
    if made is None:
        raise _OpenError(f"${{{inner}}}: the resolver {name!r} is defined by the program")
    given = [_argument(one, path, source, depth) for one in arguments]
    if name in _ARITHMETIC and not all(isinstance(one, (int, float)) for one in given):
        raise _OpenError(f"${{{inner}}} cannot be computed: not of numbers")
    try:
        return made(*given)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        raise _OpenError(f"${{{inner}}} cannot be computed") from None


def _joined(text: str, path: Key, source: _Source, depth: int) -> str:
    return str(_text(text, path, source, depth)) if "${" in text else text.strip()


def _argument(text: str, path: Key, source: _Source, depth: int) -> Any:
    found = _text(text.strip(), path, source, depth) if text.strip() else ""
    if not isinstance(found, str):
        return found
    return _word(found.strip().strip("'\""))


def _word(text: str) -> Any:
    """The value of a text without references: a number, a boolean, None, or the text."""
    plain = text.strip()
    return _WORDS[plain.lower()] if plain.lower() in _WORDS else plain_value(plain)


def _arguments(text: str) -> list[str]:
    """The arguments of a resolver, cut at its top-level commas."""
    found, begin, deep = [], 0, 0
    for place, char in enumerate(text):
        deep += (char in "{[") - (char in "}]")
        if char == "," and not deep:
            found.append(text[begin:place])
            begin = place + 1
    return [*found, text[begin:]]


def _key(name: str, path: Key, source: _Source, depth: int) -> Any:
    """The value of a key: absolute, or relative with leading dots (one table up per dot). A key
    with the name that a larger configuration gives this one (`${training.model.x}`) is tried
    without the name."""
    up = len(name) - len(name.lstrip("."))
    requested = tuple(part for part in name.replace("[", ".").replace("]", "").split(".") if part)
    if up:
        base = path[: max(0, len(path) - up)]
        tried = [(*base, *requested)]
    else:
        tried = [requested]
        if requested and not any(known[:1] == requested[:1] for known in source.values):
            tried.append(requested[1:])
    for one in tried:
        if one and one in source.values:
            raw = source.values[one]
            if isinstance(raw, Open):
                raise _OpenError(raw.why)
            return _text(raw, one, source, depth) if isinstance(raw, str) else raw
    raise _OpenError(f"${{{name}}} is filled in elsewhere")


def _whole(value: float) -> int | float:
    return int(value) if isinstance(value, float) and value.is_integer() else value


_ARITHMETIC = frozenset(
    {"multiply", "mul", "add", "subtract", "sub", "divide", "div", "floor_div", "divide_floor",
     "int_div", "divide_ceil", "ceil_div"}
)  # fmt: skip
_RESOLVERS: dict[str, Callable[..., Any]] = {
    "multiply": lambda a, b: _whole(a * b),
    "mul": lambda a, b: _whole(a * b),
    "add": lambda *numbers: _whole(sum(numbers)),
    "subtract": lambda a, b: _whole(a - b),
    "sub": lambda a, b: _whole(a - b),
    "divide": lambda a, b: _whole(a / b),
    "div": lambda a, b: _whole(a / b),
    "floor_div": lambda a, b: a // b,
    "divide_floor": lambda a, b: a // b,
    "int_div": lambda a, b: a // b,
    "divide_ceil": lambda a, b: math.ceil(a / b),
    "ceil_div": lambda a, b: math.ceil(a / b),
    "eq": lambda a, b: a == b,
    "neq": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "gt": lambda a, b: a > b,
    "or": lambda *truths: any(truths),
    "and": lambda *truths: all(truths),
    "not": lambda truth: not truth,
    "max": lambda *numbers: max(numbers),
    "min": lambda *numbers: min(numbers),
}
