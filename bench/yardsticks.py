"""Public problems with known answers, solved by the planner and the simulator.

Reads `../shared/yardsticks` next to the repository; prints that it is absent otherwise.
"""

from __future__ import annotations

from pathlib import Path

from bench.partition import partition_rows
from bench.sailor.table import mean_absolute_percent, sailor_rows, table

FOLDER = Path(__file__).parents[2] / "shared" / "yardsticks"
MOST_ABOVE = 0.01  # of the published optimum of a contiguous split
MOST_SAILOR_PERCENT = 8.0


def run() -> int:
    """Prints the tables; 1 if a split or the mean error of Sailor's runs misses its threshold."""
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
        if row.known is not None and abs(row.max_load / row.known - 1) > MOST_ABOVE:
            bad = 1
    rows = sailor_rows(FOLDER / "sailor")
    print(table(rows))
    error = mean_absolute_percent([row.error for row in rows])
    return int(bool(bad) | (error > MOST_SAILOR_PERCENT))
