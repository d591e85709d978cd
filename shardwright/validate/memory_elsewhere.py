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
from simulator.training_run.interval import FEWEST, Band, band_of
from simulator.training_run.memory_stack import (
    load_memory_stack,
    memory_stack_names,
    memory_stack_of,
)

FIGURES = Path(__file__).parents[2] / "profiles" / "data" / "published" / "figures.csv"


def peaks_elsewhere(path: Path, known: Mapping[str, Band]) -> dict[str, Band]:
    """memory file -> band, of those without one that describe the same frameworks as files of
    which the table at `path` has enough peaks."""
    table = memory_table(read_runs(path, lenient=True), read_measured(path))
    ratios: dict[tuple[str, ...], list[float]] = {}
    for run, measured in zip(table.runs, table.measured.tolist(), strict=True):
        shown = footprint(run).shown_bytes
        ratios.setdefault(memory_stack_of(run).run_stacks, []).append(measured / shown)
    found = {}
    for name in memory_stack_names():
        mine = ratios.get(load_memory_stack(name).run_stacks, [])
        if name not in known and len(mine) >= FEWEST:
            found[name] = band_of(mine)
    return found
