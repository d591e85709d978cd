"""Comparison of two answers of `size`: probabilities of being faster and cheaper."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiles.errors import InputError, UnknownNameError
from shardwright.analysis.size_better import versus_of
from shardwright.analysis.size_json import size_json
from shardwright.requests.sizing.sized import Sized

# Flags that --versus may change.
CHANGEABLE = (
    *("on", "tokens", "deadline", "budget", "sure", "nodes", "devices", "minimise", "stack"),
    *("global-batch", "precision", "lora", "pue", "region", "prices", "price-kind", "network"),
    *("reliability", "base-precision", "optimizer"),
)
_NUMBERS = {"lora": int, "pue": float}
_FILES = ("prices", "reliability")


def replaced(given: Mapping[str, Any], on: str, text: str) -> dict[str, Any]:
    """The flags with changes such as `on=b200;price-kind=spot`; raises InputError."""
    made = {"on": on, **given}
    for part in filter(None, (each.strip() for each in text.split(";"))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise InputError(
                f"--versus {text!r}: {part!r} changes nothing; write on=b200, or "
                "price-kind=spot;network=ib-xdr"
            )
        if name not in CHANGEABLE:
            raise UnknownNameError("flag", name, CHANGEABLE, where="--versus")
        key = {"price-kind": "price"}.get(name, name.replace("-", "_"))
        try:
            made[key] = Path(value) if name in _FILES else _NUMBERS.get(name, str)(value)
        except ValueError:
            raise InputError(f"--versus {part}: {value!r} is not a number") from None
    return made


def versus_json(text: str, first: Sized, second: Sized) -> dict[str, Any]:
    """The second answer and the probabilities as plain values for JSON."""
    data: dict[str, Any] = {"versus": text, "answer": size_json(second.question, second.answer)}
    if first.answer.best is not None and second.answer.best is not None:
        versus = versus_of(first.answer.best, second.answer.best)
        data |= {
            "probability_first_is_faster": versus.faster,
            "probability_first_is_cheaper": versus.cheaper,
        }
    return data
