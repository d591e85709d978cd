"""Terminal report of `catalog show --owning`: owning a device compared with renting it."""

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
            for name, value in assumed(owning)
        ),
    )


def assumed(owning: Owning) -> tuple[tuple[str, SourcedRange], ...]:
    """The inputs with default (published) values."""
    named = (
        ("depreciation_years", owning.depreciation_years),
        ("hosting_usd_per_kw_month", owning.hosting_usd_per_kw_month),
        ("power_usd_per_kwh", owning.power_usd_per_kwh),
    )
    return tuple((name, value) for name, value in named if value.method == "published")


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
