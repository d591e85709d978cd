"""The offers that we ship: profiles/data/prices/offers.csv, and sources.csv (where each was read).

Both are made by tools/derive_prices.py. A price list that has no date was not taken.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path

from profiles.hardware.prices.offer import Offer

OFFER_FILE = Path(__file__).parents[2] / "data" / "prices" / "offers.csv"
SOURCE_FILE = OFFER_FILE.with_name("sources.csv")


@functools.cache
def shipped_offers() -> tuple[Offer, ...]:
    """Every offer that we ship."""
    addresses = {row["source"]: row["address"] for row in _rows(SOURCE_FILE)}
    return tuple(
        Offer(
            provider=row["provider"],
            region=row["region"],
            instance=row["instance"],
            device=row["device"],
            kind=row["kind"],
            usd_per_device_hour=float(row["usd_per_device_hour"]),
            date=row["date"],
            address=addresses[row["source"]],
            notes=row["notes"],
        )
        for row in _rows(OFFER_FILE)
    )


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))
