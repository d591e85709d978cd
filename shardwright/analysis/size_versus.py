"""Comparison of two answers of `size`: probabilities of being faster and cheaper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from profiles.errors import InputError, UnknownNameError
from shardwright.analysis.size_better import versus_of
from shardwright.analysis.size_json import size_json
from shardwright.options.option import options_of, values_of
from shardwright.options.size_options import SizeOptions
from shardwright.requests.sizing.sized import Sized


def replaced(options: SizeOptions, text: str) -> SizeOptions:
    """The options with changes such as `on=b200;price-kind=spot`; raises InputError."""
    flags = {
        each.flag.removeprefix("--"): each.name
        for each in options_of(SizeOptions)
        if not each.argument
    }
    texts: dict[str, str] = {}
    for part in filter(None, (each.strip() for each in text.split(";"))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise InputError(
                f"--versus {text!r}: {part!r} changes nothing; write on=b200, or "
                "price-kind=spot;network=ib-xdr"
            )
        if name not in flags:
            raise UnknownNameError("flag", name, flags, where="--versus")
        texts[flags[name]] = value
    return replace(options, **values_of(SizeOptions, texts))


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
