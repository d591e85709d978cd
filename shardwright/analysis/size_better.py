"""Probabilities that one sized run is faster, cheaper or better than another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from planner.sizing.run_outlook import RunOutlook
from simulator.log_interval import probability_less
from simulator.training_run.fit.interval import UNFITTED_UNCERTAINTY
from simulator.values.prediction import Interval, Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Versus:
    """Probabilities (0 to 1) that the first answer is faster, and cheaper; None without prices."""

    faster: float
    cheaper: float | None


def probability_better(minimised: str, best: RunOutlook, other: RunOutlook) -> float | None:
    """Probability that the other run has the smaller cost, time or energy; None for goals without
    uncertainty (devices, tokens) and for costs without a price."""
    if minimised == "energy":
        return probability_less(other.kwh, best.kwh)
    versus = versus_of(other, best)
    return {"cost": versus.cheaper, "time": versus.faster}.get(minimised)


def versus_of(first: RunOutlook, second: RunOutlook) -> Versus:
    """Probabilities that the first run is faster, and cheaper.

    With different devices or frameworks the two are treated as independent, but for the price of
    one device. Otherwise common errors cancel: only half of the difference of every part of the
    step is uncertain, as assumed in simulator/training_run/fit/interval.py. With different prices
    the price spreads decide.
    """
    like = _kind(first) == _kind(second)
    one_price = first.run.choice.price_words == second.run.choice.price_words
    cheaper = None
    if first.usd is not None and second.usd is not None:
        cheaper = probability_less(first.usd, second.usd)
        if first.run.choice.device == second.run.choice.device and one_price and not like:
            cheaper = probability_less(first.device_hours, second.device_hours)
        elif like and one_price:
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
