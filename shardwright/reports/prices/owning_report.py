"""Owning a device against renting it, as `catalog show --owning` prints it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from profiles.errors import InputError
from profiles.hardware.prices.owning import Owning
from profiles.hardware.prices.price_table import DevicePrice
from profiles.sourced import SourcedRange
from profiles.units import format_percent, format_usd
from shardwright.reports.labelled import labelled
from shardwright.reports.terminal import format_interval, table
from simulator.ownership import OwnedCost, break_even, owned_cost
from simulator.values.prediction import Interval

_USES = (1.0, 0.8, 0.5)


def owning_report(owning: Owning, device: str, prices: Sequence[DevicePrice]) -> RenderableType:
    """What an hour costs of one's own, from which use it is cheaper than each rent, and what of
    it was assumed."""
    cost = owned_cost(owning, device)
    rows = table("an owned device, per hour of the calendar", ">")
    parts = (
        ("purchase and network", cost.capital_usd),
        ("hosting", cost.hosting_usd),
        ("staff", cost.staff_usd),
        ("power while it is used", cost.power_usd),
        ("power while it stands idle", cost.idle_power_usd),
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
            for name, value in assumed(owning)
        ),
    )


def assumed(owning: Owning) -> tuple[tuple[str, SourcedRange], ...]:
    """The inputs that are usual values, because nobody said others."""
    named = (
        ("depreciation_years", owning.depreciation_years),
        ("hosting_usd_per_kw_month", owning.hosting_usd_per_kw_month),
        ("power_usd_per_kwh", owning.power_usd_per_kwh),
    )
    return tuple((name, value) for name, value in named if value.method == "published")


def _break_even(cost: OwnedCost, price: DevicePrice, owning: Owning) -> str:
    rent = Interval(value=price.usd_per_hour, low=price.low, high=price.high)
    try:
        found = break_even(cost, rent, owning.depreciation_years.value)
    except InputError:
        return "never: the rent is below the power"
    low = format_percent(found.use.low)
    high = "never" if found.use.high > 1 else format_percent(found.use.high)
    if not found.ever:
        return f"never [{low if found.use.low <= 1 else 'never'} - never]"
    hours = f"{found.device_hours.value:,.0f} hours"
    return f"{format_percent(found.use.value)} [{low} - {high}], {hours}"
