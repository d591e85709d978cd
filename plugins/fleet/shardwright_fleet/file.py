"""A file of runs and clusters (`shardwright fleet jobs.toml`), read into a `FleetQuestion`.

schema = "shardwright/fleet@1"
start = "2026-12-01"                # hour 0 of all dates
prefer = "cost"                     # after lateness; or "time"

[[cluster]]
name = "east"
on = "16x8xh100-sxm"
terms = "owned"                     # or "rented"
price = "2.10$"                     # of a device-hour, or a kind: on-demand, spot, ...

[[job]]
name = "base"
model = "llama-3.1-8b"
tokens = "1T"
seq = 8192
global_batch = 512
deadline = "2027-01-31"             # the end of that day; or "45d" after the start
late = "avoid"                      # or "never", or "20k$" for each day
priority = 5
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from profiles.document import decode, read_mapping
from profiles.errors import DocumentError, ShardwrightError
from profiles.hardware.prices.offer import Offer
from profiles.text_file import read_text
from shardwright.requests.file_lines import with_lines
from shardwright_fleet.entries import FleetFile
from shardwright_fleet.question import (
    FleetQuestion,
)
from shardwright_fleet.reader import FleetReader

FLEET_SCHEMA = "shardwright/fleet@1"


def read_fleet(
    path: Path, *, offers: tuple[Offer, ...] | None = None
) -> tuple[FleetQuestion, tuple[str, ...]]:
    """The question in a file, and the assumptions.

    offers  price offers instead of the shipped ones

    Raises DocumentError that names every wrong entry with its line.
    """
    text = read_text(path)
    data = _plain(read_mapping(path))
    if data.get("schema") != FLEET_SCHEMA:
        raise DocumentError(
            f"{path}: its first line should be schema = {FLEET_SCHEMA!r}, found "
            f"{data.get('schema')!r}"
        )
    try:
        return FleetReader(decode(FleetFile, data, where=str(path)), offers).question()
    except ShardwrightError as error:
        raise DocumentError(with_lines(str(error), path, text)) from error


def _plain(data: Any) -> Any:
    """Dates of TOML as texts."""
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_plain(value) for value in data]
    return data.isoformat() if isinstance(data, datetime.date) else data
