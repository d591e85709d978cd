"""Makes profiles/data/calibration/memory_intervals.toml from tables of published runs.

    python -m tools.derive_memory_intervals RUNS.csv [MORE.csv ...] [--without NAME ...]

`--without` names sources, or ids of rows whose peak no column can express. The project's own table
of figures (profiles/data/published) is read too. Deterministic: equal tables give equal files, but
for the date.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from evidence.crossvalidate import plain_folds, source_folds
from evidence.groups import source_of
from evidence.memory_bands import bands, is_family, source_spread
from evidence.memory_fit import (
    Array,
    MemoryTable,
    fit_memory,
    left_out_bytes,
    left_out_intervals,
    memory_table,
    predicted_bytes,
    ratios_by_framework,
    ratios_by_source,
)
from profiles.document import write_text
from shardwright.runs.run import FIGURES, PublishedRun
from shardwright.runs.run_table import Measured, read_measured, read_runs
from simulator.training_run.fit.memory_interval import (
    MEMORY_INTERVALS_FILE,
    MEMORY_INTERVALS_SCHEMA,
    Band,
    SourceSpread,
)
from simulator.values.prediction import Interval


def main() -> None:
    """Leave out, write the file, and print errors and coverage by source."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--without", nargs="*", default=[])
    asked = parser.parse_args()
    without = frozenset(asked.without)
    table = _table([*asked.tables, FIGURES], without)
    folds = source_folds(table.published)
    unseen = left_out_bytes(table, folds)
    spread = source_spread(ratios_by_source(table, unseen))
    if spread is None:
        sys.exit(
            f"{len(table.runs)} rows with a peak are of fewer than two sources: nothing written"
        )
    margins = _margins(_table(asked.tables, without), _table([FIGURES], without))
    write_text(MEMORY_INTERVALS_FILE, _file(spread, margins, datetime.date.today().isoformat()))
    _print_errors(table, unseen, left_out_intervals(table, unseen, folds))


def _table(paths: Sequence[Path], without: frozenset[str]) -> MemoryTable:
    """The runs with a peak; of several rows with one id the first."""
    published: dict[str, PublishedRun] = {}
    measured: dict[str, Measured] = {}
    for path in paths:
        peaks = {row.id: row for row in read_measured(path) if row.peak_memory_gib}
        for run in read_runs(path, lenient=True):
            named = {run.id, source_of(run.id)} & without
            if run.id in peaks and run.id not in published and not named:
                published[run.id], measured[run.id] = run, peaks[run.id]
    return memory_table(published.values(), measured.values())


def _margins(table: MemoryTable, figures: MemoryTable) -> dict[str, Band]:
    """The bands of frameworks and of all, from the tables; those of families, from the figures, on
    which nothing is fitted."""
    five = left_out_bytes(table, plain_folds(table.published))
    own = bands(ratios_by_framework(table, five))
    families = bands(ratios_by_framework(figures, predicted_bytes(figures, fit_memory(table))))
    return {name: band for name, band in own.items() if not is_family(name)} | {
        name: band for name, band in families.items() if is_family(name)
    }


def _file(spread: SourceSpread, margins: dict[str, Band], today: str) -> str:
    lines = [
        "# Measured over predicted peaks of rows that were left out",
        "# (simulator/training_run/fit/memory_interval.py). Made by",
        "# tools/derive_memory_intervals.py.",
        f'schema = "{MEMORY_INTERVALS_SCHEMA}"',
        'source = "published runs with a measured peak"',
        'method = "spread: standard deviations of log(measured / predicted), each source left out '
        'whole; margins: split conformal bands, 5-fold, peaks as nvidia-smi shows them excluded"',
        f'date = "{today}"',
        "",
        "[spread]",
        f"between = {spread.between:.4f}",
        f"within = {spread.within:.4f}",
        f"rows = {spread.rows}",
        f"sources = {spread.sources}",
        "",
        "[margins]",
    ]
    for name, band in margins.items():
        lines.append(
            f'"{name}" = {{ low = {band.low:.4f}, high = {band.high:.4f}, rows = {band.rows} }}'
        )
    return "\n".join(lines) + "\n"


def _print_errors(table: MemoryTable, unseen: Array, intervals: Sequence[Interval]) -> None:
    """Errors in-sample and with the source left out, and the coverage of the latter's intervals."""
    sources = np.asarray([source_of(run.id) for run in table.published])
    pairs = zip(table.measured.tolist(), intervals, strict=True)
    inside = np.asarray([band.low <= peak <= band.high for peak, band in pairs])
    shipped = predicted_bytes(table, fit_memory(table))
    medians, shares = [], []
    for name in sorted(set(sources.tolist())):
        mine = sources == name
        errors = [np.abs(found[mine] / table.measured[mine] - 1) for found in (shipped, unseen)]
        medians.append(float(np.median(errors[1])))
        shares.append(float(inside[mine].mean()))
        sys.stdout.write(
            f"{name}: {mine.sum()} rows, in-sample mean {errors[0].mean():.1%}, source left out "
            f"mean {errors[1].mean():.1%}, median {medians[-1]:.1%}, intervals contain "
            f"{shares[-1]:.1%}\n"
        )
    sys.stdout.write(
        f"{len(medians)} sources: median of medians {np.median(medians):.1%}, intervals contain "
        f"{np.mean(shares):.1%} on average over sources, {inside.mean():.1%} of the rows\n"
    )


if __name__ == "__main__":
    main()
