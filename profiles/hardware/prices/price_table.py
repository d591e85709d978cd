"""The price of a device-hour: the median over providers of each provider's cheapest region.

One vote per provider: a cloud that lists one price in fifty regions counts once, and so does a
marketplace. The offers behind a number are in it (`DevicePrice.offers`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import replace

from profiles.errors import UnknownNameError
from profiles.hardware.catalogue.catalog import base_of
from profiles.hardware.catalogue.device_variant import variant_of
from profiles.hardware.prices.device_price import DevicePrice
from profiles.hardware.prices.offer import KINDS, Offer
from profiles.hardware.prices.offer_table import shipped_offers

# In whose place a device without an offer stands: the same chip on the same kind of board.
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
    """The price of an hour of a device by its name or alias; None where no provider offers it.

    offers  in the place of those that we ship (`shipped_offers`; with a user's own `with_own`)

    A variant (`h100-sxm@500w`) costs what its device costs, a share (`trainium2/4`) its part.
    Raises UnknownNameError for another kind of price and for a device that is not in the catalogue.
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
    """`device_price`, or that of the same chip where a device has no offer of its own; the result
    says so (`borrowed_from`). None where neither has one."""
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
    """The kinds of price that some provider offers a device at, its own or of the same chip."""
    listed = tuple(shipped_offers() if offers is None else offers)
    return tuple(kind for kind in KINDS if price_or_relatives(device_name, kind, listed))


def with_own(own: Iterable[Offer]) -> tuple[Offer, ...]:
    """A user's offers and ours: of a device and kind that the user has an offer of, only theirs."""
    mine = tuple(own)
    priced = {(offer.device, offer.kind) for offer in mine}
    return (*mine, *(o for o in shipped_offers() if (o.device, o.kind) not in priced))


def _share(device_name: str) -> int:
    return variant_of(device_name.strip().lower()).share


def _cheapest_by_provider(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """Of each provider its cheapest offer, the newest of equal ones; cheapest first."""
    best: dict[str, Offer] = {}
    newest_first = sorted(offers, key=lambda o: (o.date, o.region, o.instance), reverse=True)
    for offer in newest_first:
        known = best.get(offer.provider)
        if known is None or offer.usd_per_device_hour < known.usd_per_device_hour:
            best[offer.provider] = offer
    return tuple(sorted(best.values(), key=lambda o: (o.usd_per_device_hour, o.provider)))
