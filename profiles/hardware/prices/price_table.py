"""The price of a device-hour: the median over providers of each provider's cheapest region.

One vote per provider: a cloud that lists one price in fifty regions counts once, and so does a
marketplace. A `DevicePrice` contains the offers behind its number.
"""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace

from profiles.errors import UnknownNameError
from profiles.hardware.catalogue.catalog import base_of
from profiles.hardware.catalogue.device_variant import variant_of
from profiles.hardware.prices.offer import KINDS, Offer, shipped_offers
from profiles.sourced import Sourced
from profiles.units import format_usd

STALE_DAYS = 90
"""Age in days from which an offer counts as outdated."""
_NAMED = 3  # maximum number of providers that are listed by name


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePrice:
    """The median over providers of each provider's cheapest region.

    borrowed_from  the device with these offers, if `device` has none, or ""
    low, high  lowest and highest price of these providers, US dollars per hour
    date, oldest_date   of the newest and the oldest offer
    offers     one per provider, cheapest first, for whole devices
    share      number of equal parts of a device of which this is one (`trainium2/4`)
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
        count = len(self.providers)
        names = ", ".join(self.providers) if count <= _NAMED else ""
        who = f"median of {count} providers{f' ({names})' if names else ''}" if count > 1 else names
        when = self.date if self.date == self.oldest_date else f"{self.oldest_date} to {self.date}"
        as_whose = f" (offers of {self.borrowed_from})" if self.borrowed_from else ""
        part = f" (1 of {self.share} parts of a device)" if self.share > 1 else ""
        return f"{who}, {self.kind}, {when}{as_whose}{part}"

    @property
    def range_words(self) -> str:
        """`$2.11 (sfcompute) to $12.29 (azure)`; empty for a single provider."""
        if len(self.offers) < 2:
            return ""
        first, last = self.offers[0], self.offers[-1]
        low, high = format_usd(self.low), format_usd(self.high)
        return f"{low} ({first.provider}) to {high} ({last.provider})"

    @property
    def half_spread(self) -> float:
        """Half the inter-quartile range of the providers' prices over the median; 0 for one."""
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


# Device without an offer -> the same chip on the same kind of board.
SAME_CHIP = {
    "a100-pcie-40gb": "a100-pcie-80gb",
    "a800-sxm-80gb": "a100-sxm-80gb",
    "h100-nvl-94gb": "h100-pcie-80gb",
    "h100-sxm-96gb": "h100-sxm-80gb",
    "h800-sxm-80gb": "h100-sxm-80gb",
    "rtx-pro-6000-maxq": "rtx-pro-6000",
    "v100-sxm2-32gb": "v100-sxm2-16gb",
    "v100-sxm3-32gb": "v100-sxm2-16gb",
}


def device_price(
    device_name: str, kind: str = "on-demand", offers: Iterable[Offer] | None = None
) -> DevicePrice | None:
    """The price of a device-hour by name or alias; None without an offer.

    offers  instead of `shipped_offers` (`with_own` adds a user's)

    A variant (`h100-sxm@500w`) has the price of its device, a share (`trainium2/4`) its part.
    Raises UnknownNameError for another kind of price and for an unknown device.
    """
    if kind not in KINDS:
        raise UnknownNameError("kind of price", kind, KINDS)
    device = base_of(device_name)
    cheapest = _cheapest_by_provider(
        offer
        for offer in (shipped_offers() if offers is None else offers)
        if offer.device == device and offer.kind == kind
    )
    if not cheapest:
        return None
    share = _share(device_name)
    prices = [offer.usd_per_device_hour / share for offer in cheapest]
    dates = sorted(offer.date for offer in cheapest)
    return DevicePrice(
        device=device,
        kind=kind,
        usd_per_hour=statistics.median(prices),
        low=prices[0],
        high=prices[-1],
        providers=tuple(sorted(offer.provider for offer in cheapest)),
        date=dates[-1],
        oldest_date=dates[0],
        offers=cheapest,
        share=share,
    )


def price_or_relatives(
    device_name: str, kind: str = "on-demand", offers: Iterable[Offer] | None = None
) -> DevicePrice | None:
    """`device_price`, or for a device without offers the price of the same chip (`borrowed_from`);
    None without either."""
    listed = tuple(shipped_offers() if offers is None else offers)
    own = device_price(device_name, kind, listed)
    lender = SAME_CHIP.get(base_of(device_name))
    if own is not None or lender is None:
        return own
    found = device_price(f"{lender}/{_share(device_name)}", kind, listed)
    if found is None:
        return None
    return replace(found, device=base_of(device_name), borrowed_from=lender)


def kinds_of(device_name: str, offers: Iterable[Offer] | None = None) -> tuple[str, ...]:
    """The kinds of price for which the device or the same chip has an offer."""
    listed = tuple(shipped_offers() if offers is None else offers)
    return tuple(kind for kind in KINDS if price_or_relatives(device_name, kind, listed))


def with_own(own: Iterable[Offer]) -> tuple[Offer, ...]:
    """A user's offers, and the shipped ones for other devices and kinds."""
    mine = tuple(own)
    priced = {(offer.device, offer.kind) for offer in mine}
    return (*mine, *(o for o in shipped_offers() if (o.device, o.kind) not in priced))


def _share(device_name: str) -> int:
    return variant_of(device_name.strip().lower()).share


def _cheapest_by_provider(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """The cheapest offer of each provider, cheapest first; ties are broken by the newest date."""
    newest_first = sorted(offers, key=lambda o: (o.date, o.region, o.instance), reverse=True)
    best: dict[str, Offer] = {}
    for offer in sorted(newest_first, key=lambda o: o.usd_per_device_hour):
        best.setdefault(offer.provider, offer)
    return tuple(sorted(best.values(), key=lambda o: (o.usd_per_device_hour, o.provider)))
