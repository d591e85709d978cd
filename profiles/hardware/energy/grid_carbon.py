"""Carbon per kilowatt-hour by region: countries, zones and cloud regions.

From profiles/data/energy/grids.csv, made by tools/derive_energy.py: location-based averages without
certificates and embodied carbon.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from profiles.csv_table import shipped_rows
from profiles.errors import UnknownNameError
from profiles.sourced import Sourced

GRID_FILE = Path(__file__).parents[2] / "data" / "energy" / "grids.csv"
WORLD = "world"
"""The default region."""
# ISO 3166-1: two letters of a country, then its three. FI is a region itself.
_CODES = dict(
    re.findall(
        r"(\w\w):(\w\w\w)",
        """
AE:ARE AR:ARG AU:AUS AT:AUT BE:BEL BG:BGR BR:BRA CA:CAN CH:CHE CL:CHL CN:CHN CO:COL CZ:CZE
DE:DEU DK:DNK EG:EGY ES:ESP EE:EST FR:FRA GB:GBR GR:GRC HK:HKG HU:HUN ID:IDN IN:IND IE:IRL
IS:ISL IL:ISR IT:ITA JP:JPN KZ:KAZ KE:KEN KR:KOR LU:LUX MA:MAR MX:MEX MY:MYS NG:NGA NL:NLD
NO:NOR NZ:NZL PK:PAK PH:PHL PL:POL PT:PRT QA:QAT RO:ROU RU:RUS SA:SAU SG:SGP SE:SWE TH:THA
TR:TUR TW:TWN UA:UKR US:USA VN:VNM ZA:ZAF
""".lower(),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A grid region; kg_per_kwh.date is a year."""

    region: str
    name: str
    kg_per_kwh: Sourced


@functools.cache
def grids() -> dict[str, Grid]:
    """All regions by lower-case name: `usa`, `se1`, `gcp:us-central1`, `world`."""
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
        for row in shipped_rows(GRID_FILE)
    }


def grid_of(region: str) -> Grid:
    """The grid of a region by its code or its name (`DEU`, `DE`, `Germany`, `aws us-east-1`).

    Raises UnknownNameError.
    """
    key = region.strip().lower()
    for code in (key, ":".join(key.split()), _CODES.get(key)):
        if code in grids():
            return grids()[code]
    for grid in grids().values():
        if ":" not in grid.region and grid.name.lower() == key:
            return grid
    raise UnknownNameError("region", region, [grid.region for grid in grids().values()])
