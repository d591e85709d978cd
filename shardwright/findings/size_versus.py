"""Comparison of two answers of `size`: probabilities of being faster and cheaper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

from planner.sizing.run_outlook import RunOutlook
from profiles.errors import InputError, UnknownNameError
from shardwright.asking.sizing.sized import Sized
from shardwright.findings.size_json import size_json
from simulator.log_interval import probability_less
from simulator.training_run.fit.interval import UNFITTED_UNCERTAINTY
from simulator.values.prediction import Interval, Part

# Flags that --versus may change.
CHANGEABLE = (
    *("on", "tokens", "deadline", "budget", "sure", "nodes", "devices", "minimise", "stack"),
    *("global-batch", "precision", "lora", "pue", "region", "prices", "price-kind", "network"),
    *("reliability", "base-precision", "optimizer"),
)
_NUMBERS = {"lora": int, "pue": float}
_FILES = ("prices", "reliability")


@dataclass(frozen=True, slots=True, kw_only=True)
class Versus:
    """Probabilities (0 to 1) that the first is faster, and cheaper; None without prices."""

    faster: float
    cheaper: float | None


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


def versus_of(first: RunOutlook, second: RunOutlook) -> Versus:
    """Probabilities that the first run is faster, and cheaper.

    With different devices or frameworks the two are treated as independent. Otherwise common errors
    cancel: only half of the difference of every part of the step is uncertain, as assumed in
    simulator/training_run/fit/interval.py. With different prices the price spreads decide.
    """
    like = _kind(first) == _kind(second)
    cheaper = None
    if first.usd is not None and second.usd is not None:
        cheaper = probability_less(first.usd, second.usd)
        if like and first.run.choice.price_words == second.run.choice.price_words:
            cheaper = _less(_parts(first, paid=True), _parts(second, paid=True))
        elif like:
            cheaper = probability_less(*(_spent(each) for each in (first, second)))
    faster = probability_less(first.days, second.days)
    if like:
        faster = _less(_parts(first), _parts(second))
    return Versus(faster=faster, cheaper=cheaper)


def _kind(outlook: RunOutlook) -> tuple[str, str]:
    return (outlook.run.choice.device, outlook.run.stack)


def _spent(outlook: RunOutlook) -> Interval:
    """Dollars with the uncertainty of the price only."""
    price = outlook.run.choice.usd_per_hour
    assert price is not None
    return price.scaled(outlook.device_hours.value)


def _parts(outlook: RunOutlook, *, paid: bool = False) -> dict[Part, float]:
    """Days of the run by parts of its steps, or device-hours if `paid`."""
    run = outlook.run
    total = (outlook.device_hours.value if paid else outlook.days.value) / run.layout.step_time_s
    return {part.name: total * part.time_s for part in run.layout.parts}


def _less(first: Mapping[Part, float], second: Mapping[Part, float]) -> float:
    """Probability that the first sum of parts is smaller; half of each difference is uncertain."""
    gap = sum(second.values()) - sum(first.values())
    unsure = UNFITTED_UNCERTAINTY * sum(
        abs(first.get(part, 0.0) - second.get(part, 0.0)) for part in Part
    )
    if unsure <= 0:
        return 0.5
    return NormalDist().cdf(gap / unsure * NormalDist().inv_cdf(0.95))


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
