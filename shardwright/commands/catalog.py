"""`shardwright catalog`."""

from __future__ import annotations

import sys

from profiles.document import encode, to_json
from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.catalog import catalog_rows, get_device
from shardwright.commands.output import show
from shardwright.reports import terminal


def catalog(action: str, name: str, *, json_output: bool) -> None:
    """`shardwright catalog`."""
    if action not in ("list", "show"):
        raise UnknownNameError("action", action, ("list", "show"))
    if action == "show":
        if not name:
            raise InputError("catalog show needs a device: shardwright catalog show h200-sxm")
        device = get_device(name)
        if json_output:
            sys.stdout.write(to_json(encode(device)))
            return
        show(terminal.device_report(device))
        return
    rows = catalog_rows()
    if json_output:
        sys.stdout.write(to_json([encode(row) for row in rows]))
        return
    show(terminal.catalog_report(rows))
