"""One answer of `size` against another: which is faster and which cheaper, and how surely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.sizing.run_outlook import RunOutlook
from profiles.errors import InputError, UnknownNameError
from shardwright.asking.sized import Sized
from shardwright.findings.size_json import size_json
from simulator.log_interval import probability_less

# What --versus may change; the names of the flags.
CHANGEABLE = (
    *("on", "tokens", "deadline", "budget", "sure", "nodes", "devices", "minimise", "stack"),
    *("global-batch", "precision", "lora", "pue", "region", "prices", "price-kind", "network"),
    "reliability",
)
_NUMBERS = {"lora": int, "pue": float}
_FILES = ("prices", "reliability")


@dataclass(frozen=True, slots=True, kw_only=True)
class Versus:
    """The probabilities (0 to 1) that the first is faster and cheaper; None without prices."""

    faster: float
    cheaper: float | None


def replaced(given: Mapping[str, Any], on: str, text: str) -> dict[str, Any]:
    """The flags with what `on=b200;price-kind=spot` changes; raises InputError."""
    from pathlib import Path

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
        key = {"price-kind": "price", "global-batch": "global_batch"}.get(name, name)
        try:
            made[key] = Path(value) if name in _FILES else _NUMBERS.get(name, str)(value)
        except ValueError:
            raise InputError(f"--versus {part}: {value!r} is no number") from None
    return made


def versus_of(first: RunOutlook, second: RunOutlook) -> Versus:
    """How sure it is that the first run is the faster, and the cheaper; the two are taken as
    independent, which makes it less sure than it is where both share a framework."""
    both = first.usd is not None and second.usd is not None
    return Versus(
        faster=probability_less(first.days, second.days),
        cheaper=(
            probability_less(first.usd, second.usd)
            if both and first.usd is not None and second.usd is not None
            else None
        ),
    )


def versus_json(text: str, first: Sized, second: Sized) -> dict[str, Any]:
    """The other answer, and the probabilities."""
    data: dict[str, Any] = {"versus": text, "answer": size_json(second.question, second.answer)}
    if first.answer.best is not None and second.answer.best is not None:
        found = versus_of(first.answer.best, second.answer.best)
        data |= {
            "probability_first_is_faster": found.faster,
            "probability_first_is_cheaper": found.cheaper,
        }
    return data
