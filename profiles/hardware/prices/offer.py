"""Offers: one provider's price of a device-hour in one region, with its source.

The shipped offers are profiles/data/prices/offers.csv and sources.csv (addresses), both written by
tools/derive_prices.py. Price lists without a date are not included.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from pathlib import Path

from profiles.csv_table import shipped_rows
from profiles.errors import InputError, UnknownNameError

KINDS = (
    *("on-demand", "spot", "reserved-1y", "reserved-3y"),
    *("committed-1y", "committed-3y"),
)
_DATE = re.compile(r"^20\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A price of one kind.

    region   the provider's name of it; empty if the price list has none
    kind     one of KINDS; `reserved` is guaranteed capacity, `committed` a discount for a
             commitment
    device   canonical name in the catalog
    date     ISO day of the source
    address  of the source
    instance the provider's name of the rented instance

    Raises InputError for an invalid price or date, UnknownNameError for another kind.
    """

    provider: str
    region: str = ""
    kind: str
    device: str
    usd_per_device_hour: float
    date: str
    address: str
    notes: str = ""
    instance: str = ""

    def __post_init__(self) -> None:
        if not self.provider.strip():
            raise InputError(f"an offer of {self.device} has no provider; name it")
        if self.kind not in KINDS:
            raise UnknownNameError("kind of price", self.kind, KINDS)
        if not (math.isfinite(self.usd_per_device_hour) and self.usd_per_device_hour > 0):
            raise InputError(
                f"a device-hour of {self.device} at {self.provider} must cost more than 0, not "
                f"{self.usd_per_device_hour}"
            )
        if not _DATE.match(self.date):
            raise InputError(
                f"the offer of {self.device} at {self.provider} has the date {self.date!r}; write "
                "the day on which it was read, for example 2026-10-08"
            )
        if not self.address.strip():
            raise InputError(
                f"the offer of {self.device} at {self.provider} has no address; give the page "
                "where it can be read"
            )


OFFER_FILE = Path(__file__).parents[2] / "data" / "prices" / "offers.csv"
SOURCE_FILE = OFFER_FILE.with_name("sources.csv")


@functools.cache
def shipped_offers() -> tuple[Offer, ...]:
    """All shipped offers."""
    addresses = {row["source"]: row["address"] for row in shipped_rows(SOURCE_FILE)}
    same = ("provider", "region", "instance", "device", "kind", "date", "notes")
    return tuple(
        Offer(
            usd_per_device_hour=float(row["usd_per_device_hour"]),
            address=addresses[row["source"]],
            **{name: row[name] for name in same},
        )
        for row in shipped_rows(OFFER_FILE)
    )
