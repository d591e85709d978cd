"""One answer of `size` against another: which is faster and which cheaper, and how surely."""

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

# What --versus may change; the names of the flags.
CHANGEABLE = (
    *("on", "tokens", "deadline", "budget", "sure", "nodes", "devices", "minimise", "stack"),
    *("global-batch", "precision", "lora", "pue", "region", "prices", "price-kind", "network"),
    *("reliability", "base-precision", "optimizer"),
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
            raise InputError(f"--versus {part}: {value!r} is no number") from None
    return made


def versus_of(first: RunOutlook, second: RunOutlook) -> Versus:
    """How sure it is that the first run is the faster, and the cheaper.

    Of unlike devices or frameworks the two are taken as independent. Of like ones what both share
    cancels: of every part of the step in which they differ half is taken as uncertain, assumed as
    in simulator/training_run/fit/interval.py, and of two prices both spreads.
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


def _kind(found: RunOutlook) -> tuple[str, str]:
    return (found.run.choice.device, found.run.stack)


def _spent(found: RunOutlook) -> Interval:
    """Dollars as uncertain as the price alone."""
    price = found.run.choice.usd_per_hour
    assert price is not None
    return price.scaled(found.device_hours.value)


def _parts(found: RunOutlook, *, paid: bool = False) -> dict[Part, float]:
    """Days of the run by the parts of its steps; device-days where they are `paid` for."""
    run = found.run
    total = (found.device_hours.value if paid else found.days.value) / run.layout.step_time_s
    return {part.name: total * part.time_s for part in run.layout.parts}


def _less(first: Mapping[Part, float], second: Mapping[Part, float]) -> float:
    """The probability that one sum of parts is below another, half of each difference uncertain."""
    away = sum(second.values()) - sum(first.values())
    unsure = UNFITTED_UNCERTAINTY * sum(
        abs(first.get(part, 0.0) - second.get(part, 0.0)) for part in Part
    )
    if unsure <= 0:
        return 0.5
    return NormalDist().cdf(away / unsure * NormalDist().inv_cdf(0.95))


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
