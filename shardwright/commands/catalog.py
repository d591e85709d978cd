"""`shardwright catalog`: lists devices and prices with their sources."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from profiles.document import encode, write_text
from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.catalog import catalog_rows, get_device
from profiles.hardware.prices.offer import KINDS, Offer
from profiles.hardware.prices.owning import read_owning
from profiles.hardware.prices.price_file import offers_with
from profiles.hardware.prices.price_table import (
    DevicePrice,
    device_price,
    kinds_of,
    price_or_relatives,
)
from shardwright.console.flags import Json, Prices
from shardwright.console.output import need_room_for, note, print_json, show

EXAMPLES = "Examples:\n\n  shardwright catalog\n\n  shardwright catalog show h200-sxm"
ACTIONS = ("list", "show", "prices", "import-prices")


def catalog(
    action: Annotated[
        str, typer.Argument(help="list, show DEVICE, prices, or import-prices FOLDER")
    ] = "list",
    name: Annotated[str, typer.Argument(help="device or folder")] = "",
    prices: Prices = None,
    owning: Annotated[
        Path | None,
        typer.Option("--owning", help="with show: cost of owning the device (docs/prices.md)"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", help="with import-prices: price file to write")
    ] = None,
    day: Annotated[
        str, typer.Option("--date", help="with import-prices: date of the catalog, ISO")
    ] = "",
    json_output: Json = False,
) -> None:
    """`shardwright catalog`: lists devices, prices and costs of owning, with their sources."""
    # Here, since --help needs none of them.
    from shardwright.reports.prices.price_report import catalog_report, prices_report

    if action not in ACTIONS:
        raise UnknownNameError("action", action, ACTIONS)
    if action == "import-prices":
        _import_prices(name, output, day)
        return
    if output is not None or day:
        raise InputError("-o and --date are for catalog import-prices FOLDER; leave them out")
    offers = None if prices is None else offers_with(prices)
    today = date.today().isoformat()
    if action == "show":
        _show_device(name, offers, today, owning, json_output=json_output)
        return
    if owning is not None:
        raise InputError("--owning is for catalog show DEVICE; leave it out")
    rows = catalog_rows()
    if action == "prices":
        every = (device_price(row.name, kind, offers) for row in rows for kind in KINDS)
        found = [price for price in every if price is not None]
        if json_output:
            print_json([encode(price) for price in found])
            return
        show(prices_report(found, today))
        return
    cheap = {row.name: price_or_relatives(row.name, offers=offers) for row in rows}
    if json_output:
        print_json([encode(row) | _row_price(cheap[row.name]) for row in rows])
        return
    show(catalog_report(rows, cheap))


def _show_device(
    name: str,
    offers: Sequence[Offer] | None,
    today: str,
    owning: Path | None,
    *,
    json_output: bool,
) -> None:
    from shardwright.reports.prices.price_report import device_report, offers_report, owning_report
    from simulator.ownership import owned_cost

    if not name:
        raise InputError("catalog show needs a device: shardwright catalog show h200-sxm")
    device, found = get_device(name), _prices(name, offers)
    inputs = None if owning is None else read_owning(owning)
    if json_output:
        data = encode(device) | {"prices": [encode(price) for price in found]}
        if inputs is not None:
            data["owned"] = encode(owned_cost(inputs, name)) | {"inputs": encode(inputs)}
        print_json(data)
        return
    show(device_report(device))
    show(offers_report(found, today))
    if inputs is not None:
        show(owning_report(inputs, name, found))


def _prices(name: str, offers: Sequence[Offer] | None) -> list[DevicePrice]:
    found = [price_or_relatives(name, kind, offers) for kind in kinds_of(name, offers)]
    return [price for price in found if price is not None]


def _row_price(price: DevicePrice | None) -> dict[str, object]:
    return {
        "usd_per_hour": None if price is None else price.usd_per_hour,
        "price": None if price is None else encode(price.sourced()),
    }


def _import_prices(folder: str, output: Path | None, day: str) -> None:
    if not folder or output is None or not day:
        raise InputError(
            "catalog import-prices needs the folder of a SkyPilot catalog, its day (rows have no "
            "date) and a file: shardwright catalog import-prices "
            "skypilot-catalog/catalogs/v8 --date 2026-10-08 -o prices.toml"
        )
    need_room_for(output)
    # Here, since only this branch reads foreign catalogs.
    from profiles.hardware.prices.price_file import price_file_text
    from profiles.hardware.prices.skypilot_catalog import read_skypilot

    found = read_skypilot(Path(folder), day)
    write_text(output, price_file_text(found.offers, output.suffix))
    note(
        f"written: {output}, {len(found.offers)} offers of {len(found.providers)} providers. Next: "
        f"shardwright plan ... --prices {output}"
    )
    for why, count in sorted(found.ignored.items(), key=lambda pair: -pair[1]):
        note(f"left out: {count} rows: {why}")
    for said in found.guessed:
        note(f"guessed: {said}")
