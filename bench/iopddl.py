"""The contest on intra-operator parallelism (2025): our costs and bounds beside the best known.

Reads `../shared/yardsticks/iopddl` beside the repository; says so where it is absent. Each instance
gets its own limit of time, but no more than a minute here.
"""

from __future__ import annotations

from pathlib import Path

from planner.yardstick.iopddl import iopddl_rows

FOLDER = Path(__file__).parents[2] / "shared" / "yardsticks" / "iopddl"
MOST_SECONDS = 60.0
MOST_ABOVE = 0.10  # of the best known, on every instance


def run() -> int:
    """Prints the table; 1 where an instance has no solution or one that is too dear."""
    if not FOLDER.is_dir():
        print("iopddl: not run, ../shared/yardsticks/iopddl is absent")
        return 0
    print("intra-operator parallelism: cost, best known, above it, bound, seconds")
    bad = 0
    for found in iopddl_rows(FOLDER, most_time_s=MOST_SECONDS):
        above = found.above_best_known
        bad |= above > MOST_ABOVE
        solution = found.row.solution
        print(
            f"  {found.instance:2} {solution.cost!s:>15} {found.best_known!s:>15} {above:+9.4%} "
            f"{solution.lower_bound!s:>15} {found.row.time_s:6.1f}"
        )
    return int(bad)
