"""Terminal reports of `catalog`: devices, their figures, their prices and offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import CatalogRow
from profiles.hardware.catalogue.device import Device
from profiles.hardware.prices.owning import Owning
from profiles.hardware.prices.price_table import STALE_DAYS, DevicePrice
from profiles.units import (
    format_bytes,
    format_flop,
    format_percent,
    format_rate,
    format_time,
    format_usd,
)
from shardwright.reports.labelled import labelled
from shardwright.reports.terminal import format_interval, table
from simulator.ownership import OwnedCost, break_even, owned_cost
from simulator.values.prediction import Interval

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


def catalog_report(
    devices: Sequence[CatalogRow], prices: Mapping[str, DevicePrice | None]
) -> RenderableType:
    """The devices of the catalog; `prices` by device, None if unknown."""
    rows = table("device", ">bf16 peak", ">memory", ">bandwidth", ">power", ">$/hour", "measured")
    for row in devices:
        price = prices.get(row.name)
        rows.add_row(
            row.name,
            format_flop(row.peak_bf16_flop_per_s) + "/s",
            format_bytes(row.memory_bytes),
            format_rate(row.memory_bandwidth_bytes_per_s),
            f"{row.power_w:.0f} W",
            format_usd(price.usd_per_hour) if price else "-",
            row.measured,
        )
    known = [price for price in prices.values() if price is not None]
    if not known:
        return rows
    first, last = min(p.oldest_date for p in known), max(p.date for p in known)
    words = (
        f"$/hour: median over providers, each one's cheapest region; on-demand, {first} to {last}; "
        "`catalog prices` has every kind with its range, `catalog show` the offers"
    )
    return Group(rows, Text(""), Text(words))


def device_report(device: Device) -> RenderableType:
    """All numbers of a device with their sources and dates."""
    rows = table("", ">value", "how", "date", "source")
    numbers = [
        ("memory", format_bytes(device.memory_bytes.value), device.memory_bytes),
        ("reserved", format_bytes(device.reserved_bytes.value), device.reserved_bytes),
        (
            "bandwidth",
            format_rate(device.memory_bandwidth_bytes_per_s.value),
            device.memory_bandwidth_bytes_per_s,
        ),
        ("power", f"{device.power_w.value:.0f} W", device.power_w),
        ("launch", format_time(device.launch_s.value), device.launch_s),
    ]
    for dtype, peak in sorted(device.peak_flop_per_s.items()):
        numbers.append((dtype, format_flop(peak.value) + "/s", peak))
    for name, value, sourced in numbers:
        rows.add_row(name, value, sourced.method, sourced.date, sourced.source)
    measured = device.measurements
    words = (
        f"Measured: {len(measured.matmul)} matmul, {len(measured.attention)} attention, "
        f"{len(measured.memory)} memory points. {measured.source} ({measured.date})"
        if measured
        else "Kernels: surfaces of the device or of its relative (profiles/data/kernels)"
    )
    return Group(
        Text.assemble((device.name, "bold"), f" ({device.vendor}; {', '.join(device.aliases)})"),
        rows,
        Text(words),
        Text(device.notes),
    )


_USES = (1.0, 0.8, 0.5)


def owning_report(owning: Owning, device: str, prices: Sequence[DevicePrice]) -> RenderableType:
    """Cost per hour of an owned device, break-even use for each rent, and assumptions."""
    cost = owned_cost(owning, device)
    rows = table("an owned device, per hour of the calendar", ">")
    parts = (
        ("purchase and network", cost.capital_usd),
        ("hosting", cost.hosting_usd),
        ("staff", cost.staff_usd),
        ("power in use", cost.power_usd),
        ("power when idle", cost.idle_power_usd),
    )
    for name, value in parts:
        rows.add_row(name, format_interval(value, format_usd))
    for use in _USES:
        name = f"per hour used, {format_percent(use)} of the time"
        rows.add_row(name, format_interval(cost.usd_per_used_hour(use), format_usd), style="bold")
    rents = table("rent", ">$/hour", "owning is cheaper from a use of", "whose")
    for price in prices:
        rents.add_row(
            price.kind,
            format_usd(price.usd_per_hour),
            _break_even(cost, price, owning),
            price.words,
        )
    rented: list[RenderableType] = [Text(""), rents] if prices else []
    return Group(
        Text(""),
        rows,
        *rented,
        Text(""),
        *(
            labelled("Assumed: ", f"{name} {value.value:g}: {value.source}", style="dim")
            for name, value in owning.published.items()
        ),
    )


def _break_even(cost: OwnedCost, price: DevicePrice, owning: Owning) -> str:
    rent = Interval(value=price.usd_per_hour, low=price.low, high=price.high)
    try:
        even = break_even(cost, rent, owning.depreciation_years.value)
    except InputError:
        return "never: the rent is below the power"
    low = format_percent(even.use.low)
    high = "never" if even.use.high > 1 else format_percent(even.use.high)
    if not even.ever:
        return f"never [{low if even.use.low <= 1 else 'never'} - never]"
    hours = f"{even.device_hours.value:,.0f} hours"
    return f"{format_percent(even.use.value)} [{low} - {high}], {hours}"
