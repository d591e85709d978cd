"""Carbon per kilowatt-hour by region: countries, zones and cloud regions.

From profiles/data/energy/grids.csv, made by tools/derive_energy.py: location-based averages without
certificates and embodied carbon.
"""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from pathlib import Path

from profiles.errors import UnknownNameError
from profiles.sourced import Sourced

GRID_FILE = Path(__file__).parents[2] / "data" / "energy" / "grids.csv"
WORLD = "world"
"""The default region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A grid region; kg_per_kwh.date is a year."""

    region: str
    name: str
    kg_per_kwh: Sourced


@functools.cache
def grids() -> dict[str, Grid]:
    """All regions by lower-case name: `usa`, `se1`, `gcp:us-central1`, `world`."""
    with GRID_FILE.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return {
        row["region"].lower(): Grid(
            region=row["region"],
            name=row["name"],
            kg_per_kwh=Sourced(
                value=float(row["g_per_kwh"]) / 1000.0,
                source="; ".join(part for part in (row["source"], row["notes"]) if part),
                date=row["year"],
                method="published",
                uncertainty=float(row["uncertainty"]),
            ),
        )
        for row in rows
    }


def grid_of(region: str) -> Grid:
    """The grid of a region by its code or its name (`DEU`, `Germany`, `aws:us-east-1`).

    Raises UnknownNameError.
    """
    key = region.strip().lower()
    if key in grids():
        return grids()[key]
    for grid in grids().values():
        if ":" not in grid.region and grid.name.lower() == key:
            return grid
    raise UnknownNameError("region", region, [grid.region for grid in grids().values()])
