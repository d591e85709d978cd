"""The carbon of a kilowatt-hour by region: countries, zones and regions of clouds.

Of the file profiles/data/energy/grids.csv, made by tools/derive_energy.py; location-based averages,
no certificates and no embodied carbon.
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
"""The region of a site that nobody names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A region of a grid; kg_per_kwh.date is a year."""

    region: str
    name: str
    kg_per_kwh: Sourced


@functools.cache
def grids() -> dict[str, Grid]:
    """Every region by its name in lower case: `usa`, `se1`, `gcp:us-central1`, `world`."""
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
    asked = region.strip().lower()
    if asked in grids():
        return grids()[asked]
    for grid in grids().values():
        if ":" not in grid.region and grid.name.lower() == asked:
            return grid
    raise UnknownNameError("region", region, [grid.region for grid in grids().values()])
