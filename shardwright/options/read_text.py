"""Values of options from their texts; errors name the flag."""

from __future__ import annotations

import math
from pathlib import Path

from profiles.errors import InputError, UnitError
from profiles.units import parse_probability, parse_quantity

ANY = "any"
"""Leaves the choice to the search."""
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_SWITCH = {"yes": True, "true": True, "no": False, "false": False}


def count(text: str, flag: str) -> int:
    """`1024`, `4k` or `4M`; raises UnitError."""
    if text.lstrip("-").isdigit():
        return int(text)
    value = parse_quantity(text, "count", where=flag)
    if value != int(value):
        raise UnitError(f"{flag}: {text!r} is not a whole number; write for example 1024 or 4k")
    return int(value)


def tokens(text: str, flag: str) -> int:
    """`4096` or `4k`: lengths of sequences are counted in steps of 1024."""
    short = text[-1:] in ("k", "K") and text[:-1].isdigit()
    return int(text[:-1]) * 1024 if short else count(text, flag)


def counts(text: str, flag: str) -> tuple[int, ...]:
    """`4` or `1,2,4`; raises InputError."""
    from planner.axes import parse_axis

    return parse_axis(text, flag)


def whole(text: str, flag: str) -> int:
    """A whole number; raises InputError.

    >>> whole("2", "--wide-layers")
    2
    """
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{flag} {text!r} is not a whole number; write {flag} 2") from None


def number(text: str, flag: str) -> float:
    """A number; raises InputError."""
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{flag} {text!r} is not a number; write {flag} 1.2") from None


def names(text: str, flag: str) -> tuple[str, ...]:
    """The parts of a list.

    >>> names("fp32, bf16", "--reduce")
    ('fp32', 'bf16')
    """
    return tuple(part.strip() for part in text.split(",") if part.strip())


def lengths(text: str, flag: str) -> tuple[tuple[int, float], ...]:
    """Lengths with their numbers, or shares; raises InputError.

    >>> lengths("512:3,4k:1", "--lengths")
    ((512, 3.0), (4096, 1.0))
    """
    found = []
    for part in names(text, flag):
        length, _, number_text = part.partition(":")
        try:
            found.append((tokens(length, flag), float(number_text)))
        except (ValueError, UnitError):
            raise InputError(
                f"{flag} {part!r} is not a length and a number of documents; write 512:3,4k:1"
            ) from None
    if any(length < 1 or not 0 < share < math.inf for length, share in found):
        raise InputError(f"{flag} {text!r}: lengths and numbers must be above 0")
    return tuple(found)


def shares(text: str, flag: str) -> tuple[float, ...]:
    """Shares from 0 to 1, or `any`; raises InputError for other texts."""
    if text == ANY:
        return _SHARES
    try:
        return tuple(float(part) for part in names(text, flag))
    except ValueError:
        raise InputError(
            f"{flag} {text!r} is not a list of shares; write 0.5, 0,0.5,1 or any"
        ) from None


def probability(text: str, flag: str) -> float:
    """`10%` or `0.1`; raises UnitError."""
    return parse_probability(text, where=flag, example="10%, or 0.1")


def seconds(text: str, flag: str) -> float:
    """`30s` or `10min`; raises UnitError."""
    return parse_quantity(text, "time", where=flag)


def switch(text: str, flag: str) -> bool:
    """`yes` or `no`; raises InputError."""
    if text not in _SWITCH:
        raise InputError(f"{flag} {text!r}: write yes or no")
    return _SWITCH[text]


def path(text: str, flag: str) -> Path:
    """The path of a file."""
    return Path(text)
