"""Derives the shipped data on power and carbon from tables of measured power and of grids.

    python -m tools.derive_energy POWER.csv CARBON.csv

power_draw.toml: a node's power by its utilisation, from benchmarks that one source ran on one node
and on several. The same work on n nodes in the time T_n keeps a node busy for T_1 / (n T_n) of what
one node alone is; the power follows r + (1 - r) x that, by least squares over the averages of runs.

grids.csv: the grids with an uncertainty each, the 90 % quantile of how far two sources of one grid
lie apart: cloud regions of about 2024 against their country's year of 2022 or 2023, and the same
for the older figures of 2016 and 2019.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import numpy as np

from profiles.csv_table import csv_text
from profiles.document import write_text
from profiles.hardware.energy.grid_carbon import GRID_FILE, WORLD
from profiles.hardware.energy.power_draw import POWER_FILE, POWER_SCHEMA

Row = dict[str, str]
_NODES = re.compile(r"(\d+)xSMC-H100")
_WINDOW = re.compile(r"window about (\d+) s")
_Z90 = 1.645  # standard deviations of a normal distribution's central 90 %

# --- power ----------------------------------------------------------------------------------------


def utilisations(rows: list[Row]) -> list[tuple[float, float]]:
    """(how busy a node was, its power), both as parts of those of one node alone."""
    runs: dict[str, dict[int, tuple[float, float]]] = {}
    for row in rows:
        nodes, window = _NODES.search(row["system"]), _WINDOW.search(row["notes"])
        if nodes is None or window is None:
            continue
        power, seconds = float(row["avg_watts_per_node"]), float(window.group(1))
        runs.setdefault(row["benchmark"], {})[int(nodes.group(1))] = (power, seconds)
    found = []
    for measured in runs.values():
        if 1 not in measured:
            continue
        alone_w, alone_s = measured[1]
        found += [
            (alone_s / (nodes * seconds), power / alone_w)
            for nodes, (power, seconds) in sorted(measured.items())
            if nodes > 1
        ]
    return found


def rest_share(points: list[tuple[float, float]]) -> tuple[float, float]:
    """r of power = r + (1 - r) x busy, by least squares, and the residual's standard deviation."""
    busy, power = np.asarray(points).T
    idle = 1.0 - busy
    r = float(np.sum((power - busy) * idle) / np.sum(idle**2))
    residual = power - (r + (1.0 - r) * busy)
    return r, float(np.sqrt(np.sum(residual**2) / (len(points) - 1)))


# Of power_draw.toml what is copied from the sources that it names.
_FULL_LOAD = (
    "Olmo 3 7B on H100 (muxup.com/2025q4/minipost-olmo3-training-cost, arXiv 2512.13961): 43 % "
    "MFU, boards at 621 W of 700 W on average over a run of which 9 % stood still; by `rest_share` "
    "that is 86 % of full utilisation"
)
_PUE = (
    "median and range of nine published training runs: T5 1.12, Meena 1.09, GShard 1.09, Switch "
    "1.10, GPT-3 1.10 (arXiv 2104.10350, table 4), PaLM 1.08 (arXiv 2204.02311, appendix B), LLaMA "
    "1.1 (arXiv 2302.13971), OLMo 2 1.2 and 1.12 by site (arXiv 2501.00656); the average of all "
    "data centres is 1.55 to 1.59 (Uptime Institute, journal.uptimeinstitute.com, 2024-02-07)"
)


def power_text(rows: list[Row]) -> str:
    """power_draw.toml."""
    points = utilisations(rows)
    r, deviation = rest_share(points)
    fitted = (
        "MLPerf Training 4.0 power logs of Sustainable Metal Cloud, nodes of 8 H100 (github.com/"
        f"mlcommons/training_results_v4.0, smc-ac-power): {len(points)} runs on 8 to 64 nodes "
        "against the same benchmark on one; least squares of the average power over how busy a "
        f"node is; residual {deviation:.1%} of a node's full power"
    )
    return f"""\
# Power of nodes and sites; meanings in profiles/hardware/energy/power_draw.py. Made by
# tools/derive_energy.py.
schema = "{POWER_SCHEMA}"

[rest_share]
value = {r:.3f}
source = "{fitted}"
date = "2024-06-12"
method = "fitted"
uncertainty = {_Z90 * deviation:.3f}

[full_load_mfu]
value = 0.5
low = 0.43
high = 0.6
source = "{_FULL_LOAD}"
date = "2025-12"
method = "derived"

[pue]
value = 1.10
low = 1.08
high = 1.20
source = "{_PUE}"
date = "2026-11-22"
method = "published"
"""


# --- carbon ---------------------------------------------------------------------------------------

_SAME = {"Korea": "South Korea"}  # the country's name in a cloud's list: in the list of countries
_WIDE = ("USA", "China", "Canada")  # countries of many grids: a region differs, it does not err
_NEWER = 2020


def grid_rows(rows: list[Row]) -> list[Row]:
    """The rows of grids.csv."""
    named = [{**row, **_place(row["region"])} for row in rows]
    countries = {
        row["name"]: float(row["gCO2_per_kWh"]) for row in named if row["kind"] == "country"
    }
    width = {
        "national": _apart(named, countries, older=False, of_country=True),
        "cloud": _apart(named, countries, older=False),
        "older": _apart(named, countries, older=True),
    }
    made = [
        {
            "region": row["code"],
            "name": row["name"],
            "g_per_kwh": f"{float(row['gCO2_per_kWh']):g}",
            "year": row["year"] or "2024",
            "uncertainty": f"{width[_class(row)]:.2f}",
            "source": row["source"].split(" https://")[0],
            "notes": "" if row["year"] else "year not stated, file of 2024-07-13",
        }
        for row in named
    ]
    spread = np.quantile(list(countries.values()), (0.05, 0.95))
    world = {
        "region": WORLD,
        "name": "World average",
        "g_per_kwh": "475",
        "year": "2024",
        "uncertainty": f"{max(abs(spread / 475.0 - 1.0)):.2f}",
        "source": "mlco2/codecarbon codecarbon/data/private_infra/carbon_intensity_per_source.json "
        "@b05965e4",
        "notes": "the interval is that of countries: 5 % to 95 %",
    }
    return [world, *made]


def _place(region: str) -> Row:
    """Code, name and kind of a row's region: `USA United States`, `zone SE1 ...`, `gcp:x (Y)`."""
    if ":" in region:
        code, _, name = region.partition(" (")
        return {"code": code, "name": name.rstrip(")"), "kind": "cloud"}
    kind, words = "country", region.split()
    if words[0] == "zone":
        kind, words = "zone", words[1:]
    elif "-" in words[0]:
        kind = "state"
    return {"code": words[0], "name": " ".join(words[1:]), "kind": kind}


def _is_new(row: Row) -> bool:
    return not row["year"] or int(row["year"]) >= _NEWER


def _class(row: Row) -> str:
    if not _is_new(row):
        return "older"
    return "cloud" if row["kind"] == "cloud" else "national"


def _apart(
    rows: list[Row], countries: dict[str, float], *, older: bool, of_country: bool = False
) -> float:
    """How far the country's figure lies from that of a cloud's region, as a part of the latter
    (`of_country`: the other way round): 90 % quantile."""
    ratios = []
    for row in rows:
        name = _SAME.get(row["name"], row["name"])
        if row["kind"] != "cloud" or name in _WIDE or name not in countries:
            continue
        if _is_new(row) is not older:
            ratio = countries[name] / float(row["gCO2_per_kWh"])
            ratios.append(abs((1.0 / ratio if of_country else ratio) - 1.0))
    return float(np.quantile(ratios, 0.9))


def grid_text(rows: list[Row]) -> str:
    """grids.csv."""
    columns = ("region", "name", "g_per_kwh", "year", "uncertainty", "source", "notes")
    return csv_text(columns, ([row[name] for name in columns] for row in grid_rows(rows)))


def _read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def main(power: Path, carbon: Path) -> None:
    """Writes both files."""
    write_text(POWER_FILE, power_text(_read(power)))
    write_text(GRID_FILE, grid_text(_read(carbon)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
