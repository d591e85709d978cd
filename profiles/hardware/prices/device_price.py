"""`DevicePrice`: what a device-hour costs, and the offers behind the number."""

from __future__ import annotations

import datetime
import statistics
from dataclasses import dataclass

from profiles.hardware.prices.offer import Offer
from profiles.sourced import Sourced
from profiles.units import format_usd

STALE_DAYS = 90
"""Older offers are pointed out."""
_NAMED = 3  # providers that are named one by one; more are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePrice:
    """The median over providers of each provider's cheapest region.

    device     whose hour it is;  borrowed_from  the device whose offers these are, where it has
               none of its own, or ""
    low, high  the cheapest and the dearest of these providers, US dollars per hour
    date, oldest_date   of the newest and the oldest offer
    offers     one per provider, cheapest first, of whole devices
    share      of how many equal parts of a device this is one (`trainium2/4`)
    """

    device: str
    kind: str
    usd_per_hour: float
    low: float
    high: float
    providers: tuple[str, ...]
    date: str
    oldest_date: str
    offers: tuple[Offer, ...]
    borrowed_from: str = ""
    share: int = 1

    @property
    def words(self) -> str:
        """`median of 9 providers, on-demand, 2026-09-20 to 2026-10-08`."""
        names = ", ".join(self.providers)
        if len(self.providers) == 1:
            who = names
        elif len(self.providers) <= _NAMED:
            who = f"median of {len(self.providers)} providers ({names})"
        else:
            who = f"median of {len(self.providers)} providers"
        when = self.date if self.date == self.oldest_date else f"{self.oldest_date} to {self.date}"
        as_whose = f" (offers of {self.borrowed_from})" if self.borrowed_from else ""
        part = f" (1 of {self.share} parts of a device)" if self.share > 1 else ""
        return f"{who}, {self.kind}, {when}{as_whose}{part}"

    @property
    def range_words(self) -> str:
        """`$2.11 (sfcompute) to $12.29 (azure)`; empty where one provider is all there is."""
        if len(self.offers) < 2:
            return ""
        first, last = self.offers[0], self.offers[-1]
        low, high = format_usd(self.low), format_usd(self.high)
        return f"{low} ({first.provider}) to {high} ({last.provider})"

    @property
    def half_spread(self) -> float:
        """Half the inter-quartile range of the providers' prices over the median; 0 of one."""
        if len(self.offers) < 2:
            return 0.0
        prices = [offer.usd_per_device_hour for offer in self.offers]
        first, _, third = statistics.quantiles(prices, n=4, method="inclusive")
        return (third - first) / 2 / statistics.median(prices)

    def sourced(self) -> Sourced:
        """The price as a number with its source; uncertainty is `half_spread`."""
        between = f"; {self.range_words}" if self.range_words else ""
        return Sourced(
            value=self.usd_per_hour,
            source=f"{self.words}{between}",
            date=self.date,
            method="derived",
            uncertainty=self.half_spread,
        )

    def stale_offers(self, on: str) -> tuple[Offer, ...]:
        """The offers that are more than STALE_DAYS older than the ISO day `on`."""
        today = datetime.date.fromisoformat(on)
        return tuple(
            offer
            for offer in self.offers
            if (today - datetime.date.fromisoformat(offer.date)).days > STALE_DAYS
        )
