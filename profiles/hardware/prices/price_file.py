"""A user's prices: offers from and to a TOML or CSV file.

    schema = "shardwright/prices@1"

    [currency]
    date = "2026-11-20"
    eur_in_usd = 1.08

    [[offers]]
    provider = "our contract"
    device = "h200"
    kind = "reserved-1y"
    price_per_device_hour = 2.60
    currency = "eur"
    date = "2026-11-01"

A CSV file has the columns of COLUMNS, the first five are required; a currency other than usd needs
its rate in the same row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from profiles.csv_table import csv_text, number_cell, read_table
from profiles.document import read_document
from profiles.errors import DocumentError, InputError, UnknownNameError
from profiles.hardware.catalogue.catalog import base_of
from profiles.hardware.prices.offer import KINDS, Offer
from profiles.hardware.prices.price_table import with_own
from profiles.hardware.prices.storage_price import OwnStorage

PRICES_SCHEMA = "shardwright/prices@1"
COLUMNS = (
    *("provider", "device", "kind", "price_per_device_hour", "date"),
    *("currency", "currency_in_usd", "region", "instance", "address", "notes"),
)
_NEEDED = COLUMNS[:5]
_RATE = re.compile(r"^([a-z]{3})_in_usd$")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnOffer:
    """An offer in a user's file.

    device   a name or alias of the catalog
    price_per_device_hour   in `currency`: `usd`, or one with a rate under [currency]
    address  of the source; by default the file
    """

    provider: str
    device: str
    kind: str = "on-demand"
    price_per_device_hour: float
    currency: str = "usd"
    date: str
    region: str = ""
    instance: str = ""
    address: str = ""
    notes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceFile:
    """The whole file; currency: `date`, and `eur_in_usd` for each currency."""

    offers: tuple[OwnOffer, ...] = ()
    currency: Mapping[str, str | float] = field(default_factory=dict)
    storage: OwnStorage | None = None


def offers_with(path: Path) -> tuple[Offer, ...]:
    """The offers of a user's file, and the shipped ones for other devices and kinds."""
    return with_own(read_price_file(path))


def storage_of(path: Path) -> OwnStorage | None:
    """The [storage] of a file, None if it has none or is a CSV file. Raises DocumentError."""
    if path.suffix == ".csv":
        return None
    return read_document(path, PriceFile, schema=PRICES_SCHEMA).storage


def read_price_file(path: Path) -> tuple[Offer, ...]:
    """The offers of a file.

    Raises DocumentError or UnknownNameError, with file and key (TOML) or line (CSV).
    """
    found = _read_csv(path) if path.suffix == ".csv" else _read_toml(path)
    if not found and storage_of(path) is None:
        raise DocumentError(f"{path} has no offer and so no price")
    return found


def _read_toml(path: Path) -> tuple[Offer, ...]:
    file = read_document(path, PriceFile, schema=PRICES_SCHEMA)
    rates = _rates(file.currency, str(path))
    date = str(file.currency.get("date", ""))
    return tuple(
        _offer(own, rates, date, f"{path}: offers[{number}]", path)
        for number, own in enumerate(file.offers)
    )


def _rates(currency: Mapping[str, str | float], where: str) -> dict[str, float]:
    """US dollars per unit of each currency."""
    rates = {"usd": 1.0}
    for key, value in currency.items():
        if key == "date":
            continue
        match = _RATE.match(key)
        if match is None:
            raise DocumentError(
                f"{where}: currency.{key}: write the US dollars of one unit as eur_in_usd = 1.08"
            )
        if isinstance(value, str) or not value > 0:
            raise DocumentError(
                f"{where}: currency.{key}: expected a rate above 0, found {value!r}"
            )
        rates[match.group(1)] = value
    if len(rates) > 1 and not currency.get("date"):
        raise DocumentError(
            f"{where}: currency: the key 'date' is missing; write the day of the rates, for "
            'example date = "2026-11-20"'
        )
    return rates


def _offer(
    own: OwnOffer, rates: Mapping[str, float], rate_date: str, where: str, path: Path
) -> Offer:
    if own.kind not in KINDS:
        raise UnknownNameError("kind of price", own.kind, KINDS, where=f"{where}.kind")
    code = own.currency.lower()
    if code not in rates:
        raise DocumentError(
            f"{where}.currency: {own.currency!r} has no rate; state it in the file "
            f"({code}_in_usd, with the date of the rate)"
        )
    try:
        device = base_of(own.device)
    except UnknownNameError as error:
        raise DocumentError(f"{where}.device: {error}") from error
    at = f"{own.price_per_device_hour:g} {code} at {rates[code]:g} usd, {rate_date}".rstrip(", ")
    notes = (own.notes, "" if code == "usd" else at)
    try:
        return Offer(
            provider=own.provider,
            region=own.region,
            instance=own.instance,
            device=device,
            kind=own.kind,
            usd_per_device_hour=own.price_per_device_hour * rates[code],
            date=own.date,
            address=own.address or str(path),
            notes="; ".join(note for note in notes if note),
        )
    except InputError as error:
        raise DocumentError(f"{where}: {error}") from error


def _read_csv(path: Path) -> tuple[Offer, ...]:
    table = read_table(path, COLUMNS, required=_NEEDED)
    found = []
    for row in table.rows:
        cells = {name: text for name, text in table.texts(row).items() if text}
        empty = [name for name in _NEEDED if name not in cells and name != "kind"]
        if empty:
            raise DocumentError(f"{table.where(row, empty[0])}: the cell is empty")
        numbers = {
            name: number_cell(cells.pop(name, ""), table.where(row, name))
            for name in ("price_per_device_hour", "currency_in_usd")
        }
        code, rate = cells.pop("currency", "usd").lower(), numbers["currency_in_usd"]
        if code != "usd" and not rate:
            where = table.where(row, "currency_in_usd")
            raise DocumentError(f"{where}: prices in {code} need a rate above 0 in US dollars")
        price = numbers["price_per_device_hour"] or 0.0
        own = OwnOffer(price_per_device_hour=price, currency=code, **cells)
        rates = {code: rate or 1.0, "usd": 1.0}
        found.append(_offer(own, rates, "", f"{path}:{row.line}", path))
    return tuple(found)


def price_file_text(offers: Iterable[Offer], suffix: str) -> str:
    """The offers as a file of that suffix (`.toml` or `.csv`), in a fixed order.

    Raises InputError for another suffix.
    """
    ordered = sorted(offers, key=lambda o: (o.device, o.kind, o.provider, o.region, o.instance))
    rows = [
        {
            "provider": offer.provider,
            "device": offer.device,
            "kind": offer.kind,
            "price_per_device_hour": offer.usd_per_device_hour,
            "date": offer.date,
            **{
                name: text
                for name in ("region", "instance", "address", "notes")
                if (text := getattr(offer, name))
            },
        }
        for offer in ordered
    ]
    if suffix == ".csv":
        return csv_text(COLUMNS, ([row.get(name) for name in COLUMNS] for row in rows))
    if suffix != ".toml":
        raise InputError(f"a price file ends in .toml or .csv, not in {suffix!r}")
    lines = [f"schema = {json.dumps(PRICES_SCHEMA)}"]
    for row in rows:
        # JSON's strings and numbers are TOML's too.
        cells = (f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in row.items())
        lines += ["", "[[offers]]", *cells]
    return "\n".join(lines) + "\n"
