"""Tables and figures with intervals, as the commands print them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from rich.table import Table

from profiles.sourced import Sourced
from profiles.units import format_bytes, format_percent, format_time, format_usd
from simulator.values.prediction import Interval


def table(*headings: str) -> Table:
    """A plain table; a heading that starts with `>` aligns its column to the right."""
    made = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        justify: Literal["left", "right"] = "right" if heading.startswith(">") else "left"
        made.add_column(heading.removeprefix(">"), justify=justify)
    return made


def memory_words(peak_bytes: float, required_bytes: float | None, capacity_bytes: float) -> str:
    """`peak 58.1 GiB, needs 62.3 GiB of 77.4 GiB`: allocated, and required if known."""
    peak, capacity = format_bytes(peak_bytes), format_bytes(capacity_bytes)
    if required_bytes is None:
        return f"peak {peak} of {capacity}"
    return f"peak {peak}, needs {format_bytes(required_bytes)} of {capacity}"


def format_interval(value: Interval, formatted: Callable[[float], str] = format_time) -> str:
    """`1.2 s [1.1 s - 1.4 s]`."""
    return f"{formatted(value.value)} [{formatted(value.low)} - {formatted(value.high)}]"


def format_share(share: Interval) -> str:
    """`41 %`, or `3.4 % - 82 %` if the interval is wide."""
    least = 0.0005  # less would be printed as 0.0 %
    if share.low < least:
        return f"up to {format_percent(min(1.0, max(share.high, 2 * least)))}"
    if share.high > 2 * share.low:
        return f"{format_percent(share.low)} - {format_percent(min(1.0, share.high))}"
    return format_percent(share.value)


NO_SOURCE = "at a price that the file does not hold: another release wrote it"


def price_words(price: Sourced) -> str:
    """`$3.80 per device-hour: median of 23 providers, on-demand, 2026-05-25 to 2026-11-09; ...`."""
    return hourly_price_words(price.value, price.source)


def hourly_price_words(usd_per_hour: float, source: str) -> str:
    """`price_words` for a price given as a number and its source."""
    return f"{format_usd(usd_per_hour)} per device-hour: {source}"


def price_note(price: Sourced | None) -> str:
    """`price_words` for a note; NO_SOURCE for files of earlier releases, which name no price."""
    return NO_SOURCE if price is None else price_words(price)
