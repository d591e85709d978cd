"""Derives the offers that we ship from a table of dated offers.

    python -m tools.derive_prices PRICES.csv

Of the table are taken: this year's dated rows of devices of the catalogue. Left out are rows that a
newer one of the same provider, region and instance replaces, averages over a provider's price list
where the list itself is there, and of each provider, region and kind all but the cheapest instance.
Rows without a date are one snapshot of unknown day and are not taken.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from profiles.csv_table import csv_text
from profiles.document import write_text
from profiles.errors import UnknownNameError
from profiles.hardware.catalogue.catalog import base_of
from profiles.hardware.prices.offer import OFFER_FILE, SOURCE_FILE

OFFER_COLUMNS = (
    *("provider", "region", "instance", "device", "kind"),
    *("usd_per_device_hour", "date", "source", "notes"),
)
SOURCE_COLUMNS = ("source", "address")
_YEAR = "2026-"
_AVERAGE = "average of "  # how the table names an average over a provider's listed prices
Row = dict[str, str]


def current(rows: list[Row]) -> list[Row]:
    """The rows that are taken, with the catalogue's names of devices, in a fixed order."""
    dated = []
    for row in rows:
        device = _device(row["device"])
        if device and row["date"].startswith(_YEAR) and len(row["date"]) == len("2026-01-01"):
            dated.append({**row, "device": device})
    newest: dict[tuple[str, ...], Row] = {}
    for row in sorted(dated, key=lambda row: row["date"]):
        newest[_key(row, "region", "instance")] = row
    listed = {_key(row) for row in newest.values() if not row["instance"].startswith(_AVERAGE)}
    cheapest: dict[tuple[str, ...], Row] = {}
    for row in newest.values():
        if row["instance"].startswith(_AVERAGE) and _key(row) in listed:
            continue
        known = cheapest.get(_key(row, "region"))
        if known is None or _rank(row) < _rank(known):
            cheapest[_key(row, "region")] = row
    return sorted(
        cheapest.values(), key=lambda r: (r["device"], r["kind"], r["provider"], r["region"])
    )


def _device(name: str) -> str:
    try:
        return base_of(name)
    except UnknownNameError:
        return ""


def _key(row: Row, *more: str) -> tuple[str, ...]:
    return tuple(row[name] for name in ("provider", "device", "kind", *more))


def _rank(row: Row) -> tuple[float, int, str]:
    """Cheapest first, of equal ones the newest."""
    return (float(row["usd_per_device_hour"]), -int(row["date"].replace("-", "")), row["instance"])


def tables(rows: list[Row]) -> tuple[str, str]:
    """The text of offers.csv and of sources.csv."""
    kept = current(rows)
    numbers = {address: f"s{i}" for i, address in enumerate(sorted({r["source"] for r in kept}), 1)}
    offers = [
        {name: row[name] for name in OFFER_COLUMNS if name != "source"}
        | {"source": numbers[row["source"]]}
        for row in kept
    ]
    sources = [{"source": number, "address": address} for address, number in numbers.items()]
    return _csv(OFFER_COLUMNS, offers), _csv(SOURCE_COLUMNS, sources)


def _csv(columns: tuple[str, ...], rows: list[Row]) -> str:
    return csv_text(columns, ([row[name] for name in columns] for row in rows))


def main(path: Path) -> None:
    """Writes both tables."""
    with path.open(encoding="utf-8", newline="") as stream:
        offers, sources = tables(list(csv.DictReader(stream)))
    write_text(OFFER_FILE, offers)
    write_text(SOURCE_FILE, sources)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
