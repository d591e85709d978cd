"""Prices: US dollars per device-hour, from our own small dated table."""

from __future__ import annotations

import csv
import functools
from pathlib import Path

from profiles.errors import UnknownNameError
from profiles.sourced import Sourced

PRICE_FILE = Path(__file__).parents[2] / "data" / "prices" / "device_hours.csv"
KINDS = ("on-demand", "spot", "reserved-1y", "reserved-3y")


def price_of(device_name: str, kind: str = "on-demand") -> Sourced | None:
    """The median price of a device-hour, or None where the table has none.

    uncertainty  half the inter-quartile range of the offers, relative to the median
    Raises UnknownNameError for another kind of price.
    """
    if kind not in KINDS:
        raise UnknownNameError("kind of price", kind, KINDS)
    return _table().get((device_name, kind))


@functools.cache
def _table() -> dict[tuple[str, str], Sourced]:
    found = {}
    with PRICE_FILE.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            found[(row["device"], row["kind"])] = Sourced(
                value=float(row["median_usd_per_hour"]),
                source=f"{row['source']}; median of {row['offers']} offers of "
                f"{row['providers']} providers",
                date=row["last_date"],
                method="derived",
                uncertainty=float(row["half_spread"]),
            )
    return found
