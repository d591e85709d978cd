"""Would the peak that logs of a cluster print help to predict the memory of its other runs?

    python -m bench.one_log_memory RUNS.csv [MORE.csv ...] [--picks 20] [--logs 1,3]

Of each source, device and framework with three measured peaks or more, some runs are taken as the
logs that a user has. Their measured over predicted peak, shrunk by one run that agrees, is a factor
for the memory of all others. `asked` takes it only where each of the logs, left out, is predicted
better by the factor of the others: the rule that calibrations of step times obey. Which runs are
taken is by hash. Nothing is written: the answer of 2026-11 is no (docs/logs.md).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.one_log import FEWEST, hash_of
from evidence.groups import source_of
from evidence.memory_fit import MemoryTable, memory_table
from shardwright.runs.run_table import read_measured, read_runs
from simulator.memory.footprint import footprint

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOfLogs:
    """A cluster's mean absolute errors on runs that the logs are not of."""

    cluster: str
    runs: int
    before: float
    after: float
    asked: float


def memory_of_logs(table: MemoryTable, logs: int, picks: int) -> list[MemoryOfLogs]:
    """Every cluster of the table with runs left over."""
    ratios = table.measured / np.asarray([footprint(run).shown_bytes for run in table.runs])
    clusters: dict[str, list[int]] = {}
    for place, (asked, run) in enumerate(zip(table.published, table.runs, strict=True)):
        name = f"{source_of(asked.id)}, {run.device}, {run.stack}"
        clusters.setdefault(name, []).append(place)
    found = []
    for name, rows in sorted(clusters.items()):
        if len(rows) >= FEWEST - 1 + logs:
            # What a factor leaves: |factor x predicted / measured - 1| = |factor / ratio - 1|.
            made = [_one(ratios[rows], taken) for taken in _taken(table, rows, logs, picks)]
            before, after, asked_ = np.mean(np.asarray(made), axis=0)
            found.append(
                MemoryOfLogs(cluster=name, runs=len(rows), before=before, after=after, asked=asked_)
            )
    return found


def _taken(table: MemoryTable, rows: list[int], logs: int, picks: int) -> list[list[int]]:
    ids = [table.published[row].id for row in rows]
    found = []
    for pick in range(min(picks, len(rows)) if logs == 1 else picks):
        order = sorted(range(len(rows)), key=lambda n: hash_of(f"{ids[n]} {pick * (logs > 1)}"))
        found.append(order[pick : pick + 1] if logs == 1 else order[:logs])
    return found


def _one(ratios: Array, taken: list[int]) -> tuple[float, float, float]:
    """Errors of the other runs without a factor, with it, and with it where it may be used."""
    own, others = ratios[taken], np.delete(ratios, taken)
    count = len(taken)
    factor = _factor(own)
    before, after = _error(1.0, others), _error(factor, others)
    if count < 2:
        return before, after, after
    left_out = [_error(_factor(np.delete(own, n)), own[n : n + 1]) for n in range(count)]
    helps = float(np.mean(left_out)) < _error(1.0, own)
    return before, after, after if helps else before


def _factor(ratios: Array) -> float:
    return float(np.exp(np.log(ratios).sum() / (len(ratios) + 1)))


def _error(factor: float, ratios: Array) -> float:
    return float(np.mean(np.abs(factor / ratios - 1.0)))


def main(arguments: Sequence[str]) -> int:
    """Prints the table of each number of logs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--picks", type=int, default=20)
    parser.add_argument("--logs", default="1,3")
    given = parser.parse_args(arguments)
    published = [run for path in given.tables for run in read_runs(path)]
    measured = [row for path in given.tables for row in read_measured(path)]
    table = memory_table(published, measured)
    for logs in map(int, given.logs.split(",")):
        found = memory_of_logs(table, logs, given.picks)
        print(f"{logs} logs: mean absolute error of the memory of other runs (%)")
        for each in found:
            print(
                f"  {each.cluster:52s} {each.runs:4d} runs  {100 * each.before:5.1f} "
                f"{100 * each.after:5.1f} {100 * each.asked:5.1f}"
            )
        means = [np.mean([getattr(e, n) for e in found]) for n in ("before", "after", "asked")]
        worse = [sum(getattr(e, n) > e.before for e in found) for n in ("after", "asked")]
        print(
            f"  {len(found)} clusters: before {100 * means[0]:.1f}, after {100 * means[1]:.1f} "
            f"({worse[0]} worse), asked {100 * means[2]:.1f} ({worse[1]} worse)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
