"""The price of a request (`--price`, `--prices`), and warnings about it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from profiles.errors import InputError, ShardwrightError, UnknownNameError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import Device
from profiles.hardware.prices.offer import KINDS, Offer
from profiles.hardware.prices.price_table import (
    STALE_DAYS,
    DevicePrice,
    kinds_of,
    price_or_relatives,
)
from profiles.sourced import Sourced


def price_for(
    cluster: Cluster, text: str = "on-demand", offers: Sequence[Offer] | None = None
) -> Sourced | None:
    """The price of a device-hour of a cluster: a kind of the price table or US dollars.

    offers  instead of the shipped ones

    None without an offer, and for clusters of several device types. Raises InputError.
    """
    given = given_price(text)
    if given is not None or not cluster.homogeneous:
        return given
    found = _found(cluster.groups[0].device, text, offers)
    return None if found is None else found.sourced()


def given_price(text: str) -> Sourced | None:
    """A price given in dollars; None for a kind of price.

    Raises UnknownNameError for another word, InputError for an impossible price.
    """
    try:
        usd = float(text)
    except ValueError:
        if text not in KINDS:
            raise UnknownNameError("price", text, KINDS, where="--price") from None
        return None
    if not 0 <= usd < math.inf:
        raise InputError(f"--price {text} must be 0 or more US dollars per device-hour")
    return Sourced(value=usd, source="given as --price", date="", method="assumed")


def price_notes(
    cluster: Cluster, text: str, *, today: str, offers: Sequence[Offer] | None = None
) -> tuple[str, ...]:
    """Warnings about prices: missing or outdated ones.

    today  ISO day of the request
    """
    if given_price(text) is not None:
        return ()
    devices = {group.device.name: group.device for group in cluster.groups}
    notes = [_note(devices[name], text, today, offers) for name in sorted(devices)]
    return tuple(note for note in notes if note)


def notes_of_many(
    named: Iterable[tuple[str, str]],
    *,
    today: str,
    local: Path | None = None,
    offers: Sequence[Offer] | None = None,
) -> tuple[str, ...]:
    """`price_notes` of many requests, without repetition; none if `today` is "".

    named  clusters and prices of the requests
    local  file of this machine's profile
    """
    found: dict[str, None] = {}
    for on, price in sorted(set(named)) if today else ():
        try:
            cluster = get_cluster(on, local=local)
            found |= dict.fromkeys(price_notes(cluster, price, today=today, offers=offers))
        except ShardwrightError:
            continue  # the question's row has the reason
    return tuple(found)


def _note(device: Device, kind: str, today: str, offers: Sequence[Offer] | None) -> str:
    found = _found(device, kind, offers)
    if found is not None:
        return stale_words(found, today)
    if device.type == "cpu":
        return ""
    others = ", ".join(_kinds(device, offers))
    there_are = f", there are offers of the kinds {others}" if others else ""
    return (
        f"no dollars: no {kind} offer of {device.name} is known{there_are}; give a price "
        "(--price 2.50) or a price file (--prices)"
    )


def stale_words(price: DevicePrice, today: str) -> str:
    """Warning about outdated offers behind a price, on a day; "" if there are none."""
    stale = price.stale_offers(today)
    if not stale:
        return ""
    oldest = min(stale, key=lambda offer: offer.date)
    return (
        f"prices of {price.device}: {len(stale)} of {len(price.offers)} are older than "
        f"{STALE_DAYS} days on {today}, the oldest of {oldest.provider}, {oldest.date} (--prices)"
    )


def _found(device: Device, kind: str, offers: Iterable[Offer] | None) -> DevicePrice | None:
    """The price; None also for a device of a cluster file that is not in the catalog."""
    try:
        return price_or_relatives(device.name, kind, offers)
    except UnknownNameError:
        return None


def _kinds(device: Device, offers: Iterable[Offer] | None) -> tuple[str, ...]:
    try:
        return kinds_of(device.name, offers)
    except UnknownNameError:
        return ()
