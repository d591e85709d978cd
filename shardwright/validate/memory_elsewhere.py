"""Bands of peaks of the frameworks that the fitted table has no peaks of, from the shipped figures.

Nothing is fitted on these rows, so that their residuals are those of rows left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from profiles.published.measured import read_measured
from profiles.published.run_table import read_runs
from shardwright.validate.memory_fit import memory_table
from simulator.training_run.footprint import footprint
from simulator.training_run.framework import framework_names, load_framework, memory_of
from simulator.training_run.interval import FEWEST, Band, band_of

FIGURES = Path(__file__).parents[2] / "profiles" / "data" / "published" / "figures.csv"


def peaks_elsewhere(path: Path, known: Mapping[str, Band]) -> dict[str, Band]:
    """Memory of a framework -> band, of those without one whose framework the table at `path` has
    enough peaks of, sharded in whatever way."""
    table = memory_table(read_runs(path, lenient=True), read_measured(path))
    ratios: dict[str, list[float]] = {}
    for run, measured in zip(table.runs, table.measured.tolist(), strict=True):
        shown = footprint(run).shown_bytes
        ratios.setdefault(_maker(memory_of(run).name), []).append(measured / shown)
    names = {each.name for name in framework_names() for each in load_framework(name).memory}
    return {
        name: band_of(ratios[_maker(name)])
        for name in sorted(names - set(known))
        if len(ratios.get(_maker(name), ())) >= FEWEST
    }


def _maker(name: str) -> str:
    return name.partition("-")[0]
