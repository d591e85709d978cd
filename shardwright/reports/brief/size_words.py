"""Text of an answer of `size`: numbers with 90 % intervals, and the headline, from its JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from profiles.units import (
    format_count,
    format_energy,
    format_percent,
    format_probability,
    format_time,
    format_tonnes,
    format_usd,
)
from shardwright.reports.brief.brief import between
from shardwright.reports.brief.columns import ends_of

_FEW_DAYS = 2.0


def days(value: float) -> str:
    """`44.7 days`, or hours below two days."""
    if value < _FEW_DAYS:
        return format_time(86400.0 * value)
    return f"{value:.3g} days"


# Formatter of each number with an interval.
WRITTEN: Mapping[str, Callable[[float], str]] = {
    "days": days,
    "usd": format_usd,
    "kwh": format_energy,
    "tco2e": format_tonnes,
    "device_hours": format_count,
    "productive_time": format_percent,
    "step_time_s": format_time,
}


def value_of(data: Mapping[str, Any], name: str) -> str:
    """The number as text; a dash for a missing one."""
    return "-" if data.get(name) is None else WRITTEN[name](data[name])


def range_of(data: Mapping[str, Any], name: str) -> str:
    """`28.8 to 64.7 days`; "" without an interval."""
    low, high = ends_of(data, name)
    return "" if low is None or high is None else between(low, high, WRITTEN[name])


def with_range(data: Mapping[str, Any], name: str) -> str:
    """`44.7 days [28.8 to 64.7 days]`; the interval is on a new line."""
    interval = range_of(data, name)
    return f"{value_of(data, name)}\n[{interval}]" if interval else value_of(data, name)


def rented(data: Mapping[str, Any]) -> str:
    """`512 nodes of 8 h100-sxm-80gb (4,096 devices)`."""
    nodes, devices = data["nodes"], data["devices"]
    return f"{nodes:,} nodes of {devices // nodes} {data['device']} ({devices:,} devices)"


def headline(data: Mapping[str, Any]) -> str:
    """One sentence: devices to rent, duration, cost and probabilities."""
    return _headline(data).replace("\n", " ")


def _headline(data: Mapping[str, Any]) -> str:
    if data.get("device") is None:
        return f"None of the listed devices keeps the limits of {data['model']}."
    text = (
        f"Rent {rented(data)}: {format_count(data['tokens'])} tokens in {with_range(data, 'days')}"
    )
    if data.get("probability_of_deadline") is not None:
        text += (
            f", within {days(data['deadline_days'])} with probability "
            f"{format_probability(data['probability_of_deadline'])}"
        )
    if data.get("usd") is None:
        return text + "; no price of the device is known."
    text += f"; {with_range(data, 'usd')}"
    if data.get("probability_of_budget") is not None:
        text += (
            f", within {format_usd(data['budget_usd'])} with probability "
            f"{format_probability(data['probability_of_budget'])}"
        )
    return text + "."
