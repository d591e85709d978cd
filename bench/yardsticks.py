"""Public problems with known answers: our costs and bounds beside the known ones.

Reads `../shared/yardsticks` beside the repository; says so where it is absent.
"""

from __future__ import annotations

from pathlib import Path

from bench.partition import partition_rows
from bench.sailor.table import mean_absolute_percent, sailor_rows, table

FOLDER = Path(__file__).parents[2] / "shared" / "yardsticks"
# Contiguous splits: within this of the published optimum (they are printed to six digits).
_DIGITS = 1e-4
MOST_SAILOR_PERCENT = 8.0


def run() -> int:
    """Prints the tables; 1 where a known optimum is not met or Sailor's runs are missed by more."""
    if not FOLDER.is_dir():
        print(f"yardsticks: not run, {FOLDER.parent.name}/{FOLDER.name} is absent")
        return 0
    bad = 0
    print("contiguous splits (partition): largest load, known optimum, bound, seconds")
    for row in partition_rows(FOLDER / "partition"):
        known = "-" if row.known is None else f"{row.known:.4f}"
        print(
            f"  {row.graph:24} {row.max_load:12.5f} {known:>10} {row.bound:12.5f} "
            f"{row.elapsed_s:6.1f}"
        )
        if row.known is not None and abs(row.max_load / row.known - 1) > _DIGITS:
            bad = 1
    rows = sailor_rows(FOLDER / "sailor")
    print(table(rows))
    error = mean_absolute_percent([row.error for row in rows])
    return int(bool(bad) | (error > MOST_SAILOR_PERCENT))
