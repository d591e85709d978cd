"""Contest on intra-operator parallelism (2025): a strategy per op, least cost, limited memory.

``python -m bench.iopddl FILE`` solves an instance with the solver of op-level placements
(the plug-in `placements`), prints `cost N bound N time S` and, with -o, writes the chosen strategy
per node as a JSON list. ``python -m bench iopddl`` prints costs and bounds next to the best known
ones for `../shared/yardsticks/iopddl` next to the repository, each instance at its own time limit
but at most a minute; it prints that the folder is absent otherwise.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

from shardwright_placements.strategy_graph.solve import Solution, Status, solve

from bench.command import start
from bench.strategy_graph.audit import audit
from bench.strategy_graph.contest_file import read_contest_problem
from profiles.document import need_writable, write_text
from profiles.errors import DocumentError, InputError
from profiles.text_file import read_text

FOLDER = Path(__file__).parents[2] / "shared" / "yardsticks" / "iopddl"
MOST_SECONDS = 60.0
CLOSED, MOST_ABOVE = frozenset("ABGP"), 0.01
"""Instances that the integer program solves within a minute on an idle core, and how far above the
best known cost they may be. On the others the search's answer only has to be allowed."""

MARGIN = 0.02
"""The part of a time limit that is not used: for the end of the process, and for a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One instance's result."""

    name: str
    solution: Solution
    strategies: tuple[int, ...] | None
    """One for every node of the file."""
    time_s: float
    """Wall time with reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContestRow:
    """One instance's result and the best known ones."""

    instance: str
    """Its letter."""
    row: Row
    best_known: float
    """The cheapest cost of the contest's teams."""
    known_bound: float
    """The lower bound that the contest published."""

    @property
    def above_best_known(self) -> float:
        """(cost - best known) / best known; `inf` if nothing allowed was found."""
        cost = self.row.solution.cost
        return math.inf if cost is None else (cost - self.best_known) / self.best_known


def solve_file(path: Path, *, time_limit_s: float, seed: int = 0) -> Row:
    """The solution of an instance's file within `time_limit_s`, reading included."""
    begun = time.monotonic()
    problem = read_contest_problem(path)
    solution = solve(
        problem.graph,
        time_limit_s=max(time_limit_s - (time.monotonic() - begun), 0.0),
        seed=seed,
    )
    chosen = solution.strategies
    if chosen is not None:
        checked = audit(problem.graph, chosen)
        if not checked.is_allowed or checked.cost != solution.cost:
            raise AssertionError(f"our answer costs {solution.cost}, the audit says {checked}")
    return Row(
        name=problem.name,
        solution=solution,
        strategies=None if chosen is None else chosen[: problem.file_nodes],
        time_s=time.monotonic() - begun,
    )


def iopddl_rows(folder: Path, *, most_time_s: float = math.inf) -> tuple[ContestRow, ...]:
    """One row for each instance of a folder, by name, at its time limit or `most_time_s`.

    The folder holds `*-NAME.json.gz` files and `best_known.csv` with the columns `instance`,
    `timeout_s`, `best_contest` and `published_lower_bound`; raises DocumentError where an entry is
    missing.
    """
    table = folder / "best_known.csv"
    try:
        lines = read_text(table).splitlines()
        known = {entry["instance"]: entry for entry in csv.DictReader(lines)}
        paths = {path.name.split(".")[0].rpartition("-")[2]: path for path in _instances(folder)}
        return tuple(
            ContestRow(
                instance=name,
                row=solve_file(
                    path, time_limit_s=min(float(known[name]["timeout_s"]), most_time_s)
                ),
                best_known=float(known[name]["best_contest"]),
                known_bound=float(known[name]["published_lower_bound"]),
            )
            for name, path in paths.items()
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DocumentError(
            f"{table}: an entry is missing or no number: {error}; it needs instance, timeout_s, "
            "best_contest and published_lower_bound for each instance's file"
        ) from error


def _instances(folder: Path) -> list[Path]:
    return sorted(folder.glob("*-*.json.gz"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m bench.iopddl`."""
    parser.add_argument("file", type=Path, help="an instance, JSON or gzipped JSON")
    parser.add_argument(
        "--time-limit", type=float, default=60.0, help="seconds of wall time in all (60)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the search's random numbers (0)")
    parser.add_argument("-o", "--output", type=Path, help="where to write the strategies (JSON)")


def solve_command(arguments: argparse.Namespace) -> int:
    """Solves and prints; 0 if something allowed was found, 3 if not.

    The limit holds for the process from its start to its end: `age_s` is how long it has run.
    """
    if not arguments.time_limit >= 0:
        raise InputError(
            f"--time-limit {arguments.time_limit}: give a number of seconds, 0 or more"
        )
    if arguments.seed < 0:
        raise InputError(f"--seed {arguments.seed}: give a whole number, 0 or more")
    if arguments.output is not None:
        need_writable(arguments.output)
    row = solve_file(
        arguments.file,
        time_limit_s=max((1.0 - MARGIN) * arguments.time_limit - arguments.age_s, 0.0),
        seed=arguments.seed,
    )
    found, time_s = row.solution, arguments.age_s + row.time_s
    if row.strategies is None:
        known = "" if found.bound is None else f" bound {found.bound}"
        proven = "infeasible" if found.status is Status.INFEASIBLE else "no solution found"
        print(f"{proven}{known} time {time_s:.2f}: {found.reason}")
        return 3
    print(f"cost {found.cost} bound {found.bound} time {time_s:.2f}")
    if arguments.output is not None:
        write_text(arguments.output, json.dumps(list(row.strategies)) + "\n")
    return 0


def run() -> int:
    """Prints the table; 1 if an instance has no solution, or one of CLOSED too expensive a one."""
    if not FOLDER.is_dir():
        print("iopddl: not run, ../shared/yardsticks/iopddl is absent")
        return 0
    print("intra-operator parallelism: cost, best known, above it, bound, seconds")
    bad = 0
    for found in iopddl_rows(FOLDER, most_time_s=MOST_SECONDS):
        above = found.above_best_known
        bad |= above > (MOST_ABOVE if found.instance in CLOSED else math.inf)
        bad |= found.row.solution.cost is None
        solution = found.row.solution
        print(
            f"  {found.instance:2} {solution.cost!s:>15} {found.best_known!s:>15} {above:+9.4%} "
            f"{solution.bound!s:>15} {found.row.time_s:6.1f}"
        )
    return int(bad)


if __name__ == "__main__":
    start(add_arguments, solve_command, __doc__)
