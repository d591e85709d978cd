"""Terminal reports of prices: one line per device and kind, and the offers of a device."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from profiles.hardware.prices.price_table import STALE_DAYS, DevicePrice
from profiles.units import format_usd
from shardwright.reports.labelled import labelled
from shardwright.reports.terminal import table

_OLD = "*"
_RULE = (
    "A price is the median over providers of each provider's cheapest region, US dollars per "
    "device-hour."
)


def prices_report(prices: Sequence[DevicePrice], today: str) -> RenderableType:
    """All prices, by device and kind; `today` is an ISO date."""
    rows = table(
        "device", "kind", ">$/hour", ">lowest", ">highest", ">providers", "oldest", "newest"
    )
    for price in prices:
        rows.add_row(
            price.device,
            price.kind,
            format_usd(price.usd_per_hour),
            format_usd(price.low),
            format_usd(price.high),
            str(len(price.providers)),
            price.oldest_date + (_OLD if price.stale_offers(today) else ""),
            price.date,
        )
    return Group(
        rows,
        Text(""),
        Text(f"{_RULE} `shardwright catalog show h200` lists the offers of a device."),
        Text(f"{_OLD} some of the offers are older than {STALE_DAYS} days on {today}"),
    )


def offers_report(prices: Sequence[DevicePrice], today: str) -> RenderableType:
    """The offers of each of a device's prices, cheapest provider first."""
    if not prices:
        return Text("Prices: no offer of a provider is known (--price, --prices)")
    parts: list[RenderableType] = []
    addresses: dict[str, int] = {}
    for price in prices:
        between = f"; {price.range_words}" if price.range_words else ""
        head = f"{format_usd(price.usd_per_hour)} per device-hour: {price.words}{between}"
        rows = table("provider", "region", "instance", ">$/hour", "date", "read at")
        stale = set(price.stale_offers(today))
        for offer in price.offers:
            number = addresses.setdefault(offer.address, len(addresses) + 1)
            rows.add_row(
                offer.provider,
                offer.region or "-",
                offer.instance or "-",
                format_usd(offer.usd_per_device_hour),
                offer.date + (_OLD if offer in stale else ""),
                f"[{number}]",
            )
        parts += [Text(""), Text(head, style="bold"), rows]
    parts.append(Text(""))
    parts += [labelled(f"[{number}] ", address) for address, number in addresses.items()]
    old = any(price.stale_offers(today) for price in prices)
    note = f" {_OLD} older than {STALE_DAYS} days on {today}." if old else ""
    return Group(*parts, Text(""), Text(_RULE + note))
