"""`shardwright catalog`."""

from __future__ import annotations

from typing import Annotated

import typer

from profiles.document import encode
from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.catalog import catalog_rows, get_device
from shardwright.commands.flags import Json
from shardwright.commands.output import print_json, show
from shardwright.reports import terminal

EXAMPLES = "Examples:\n\n  shardwright catalog\n\n  shardwright catalog show h200-sxm"


def catalog(
    action: Annotated[str, typer.Argument(help="list or show")] = "list",
    name: Annotated[str, typer.Argument(help="a device")] = "",
    json_output: Json = False,
) -> None:
    """`shardwright catalog`."""
    if action not in ("list", "show"):
        raise UnknownNameError("action", action, ("list", "show"))
    if action == "show":
        if not name:
            raise InputError("catalog show needs a device: shardwright catalog show h200-sxm")
        device = get_device(name)
        if json_output:
            print_json(encode(device))
            return
        show(terminal.device_report(device))
        return
    rows = catalog_rows()
    if json_output:
        print_json([encode(row) for row in rows])
        return
    show(terminal.catalog_report(rows))
