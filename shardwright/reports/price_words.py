"""The basis of an answer's dollars, as text: provider, kind and date of the price."""

from __future__ import annotations

from profiles.sourced import Sourced
from profiles.units import format_usd

NO_SOURCE = "at a price that the file does not hold: another release wrote it"


def price_words(price: Sourced) -> str:
    """`$3.80 per device-hour: median of 23 providers, on-demand, 2026-05-25 to 2026-11-09; ...`."""
    return hourly_words(price.value, price.source)


def hourly_words(usd_per_hour: float, source: str) -> str:
    """The same of a row that holds the price and its words each by itself."""
    return f"{format_usd(usd_per_hour)} per device-hour: {source}"


def price_note(price: Sourced | None) -> str:
    """The same beside a number, where files of earlier releases have dollars without a price."""
    return NO_SOURCE if price is None else price_words(price)
