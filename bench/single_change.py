"""Is the single change that is ranked first measured to be an improvement? By source.

    python -m bench.single_change RUNS.csv [MORE.csv ...] [--least-gain 0.05] [--left-out]

Of every measured run its neighbours are taken that were measured too and differ from it in one
setting (a changed degree changes dp with it): same source, model, devices, batch and sequence. They
are ranked by the predicted gain; where the first one is advice at all (it saves `--least-gain`),
it counts as right if its measured step is shorter. `all` counts every neighbour that would be
advised, not the first alone; `first of all` only those first-ranked changes that are first among
the unmeasured neighbours, too. With `--left-out` each source is priced with coefficients that were
fitted without its rows (a minute or two each); `first of all` keeps the shipped ones.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwright_frameworks.changes.ranked_changes import LEAST_GAIN, ranked_changes

from evidence.cross_fit import fit, fit_table, predicted_s
from shardwright.runs.predict_runs import predict_runs
from shardwright.runs.run_table import read_measured, read_runs
from simulator.training_run.run.training_run import TrainingRun, setting_of

# A setting and what goes with it: the devices that a degree takes are those of dp, a pipeline
# brings its schedule, chunks are the interleaved schedule.
_SETTINGS = {
    "micro_batch": ("micro_batch",),
    "recompute": ("recompute", "recompute_layers"),
    "tp": ("tp", "dp", "sequence_parallel"),
    "pp": ("pp", "dp", "schedule", "vpp"),
    "cp": ("cp", "dp"),
    "vpp": ("vpp", "schedule"),
    "ep": ("ep",),
    "zero_stage": ("zero_stage",),
    "sequence_parallel": ("sequence_parallel",),
    "schedule": ("schedule", "vpp"),
}
_FIELDS = ("micro_batch", "recompute", "recompute_layers", "tp", "pp", "cp", "dp", "vpp",
           "ep", "zero_stage", "sequence_parallel", "schedule")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A source's counts: advised and right of the first-ranked, of all advised, of the first of
    all neighbours; and how many runs had a measured neighbour."""

    runs: int
    first: tuple[int, int]
    every: tuple[int, int]
    first_of_all: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    source: str
    run: TrainingRun
    measured_s: float
    predicted_s: float


def changed_setting(one: TrainingRun, other: TrainingRun) -> str | None:
    """The one setting in which two runs differ, None where it is none or several."""
    differ = {name for name in _FIELDS if setting_of(one, name) != setting_of(other, name)}
    if not differ:
        return None
    for setting, fields in _SETTINGS.items():
        main = fields[0]
        if main in differ and differ <= set(fields):
            return setting
    return None


def judge(runs: Sequence[_Run], least_gain: float) -> dict[str, Judged]:
    """The counts of every source, and of each setting within it."""
    groups: dict[tuple[object, ...], list[_Run]] = defaultdict(list)
    for each in runs:
        run = each.run
        groups[
            (each.source, run.model, run.device, run.degrees.num_devices, run.global_batch,
             run.seq_len, run.precision, run.stack)
        ].append(each)  # fmt: skip
    counts: dict[str, list[int]] = defaultdict(lambda: [0] * 7)
    for group in groups.values():
        for each in group:
            near = [o for o in group if o is not each and changed_setting(each.run, o.run)]
            if not near:
                continue
            row = counts[each.source]
            row[0] += 1
            near.sort(key=lambda o: o.predicted_s)
            for place, other in enumerate(near):
                if 1.0 - other.predicted_s / each.predicted_s < least_gain:
                    break
                right = other.measured_s < each.measured_s
                if place == 0:
                    row[1] += 1
                    row[2] += right
                    if _is_first_of_all(each.run, other.run, least_gain):
                        row[5] += 1
                        row[6] += right
                row[3] += 1
                row[4] += right
    return {
        source: Judged(runs=r[0], first=(r[1], r[2]), every=(r[3], r[4]), first_of_all=(r[5], r[6]))
        for source, r in counts.items()
    }


def _is_first_of_all(run: TrainingRun, other: TrainingRun, least_gain: float) -> bool:
    ranked = ranked_changes(run, least_gain=least_gain)
    if not ranked:
        return False
    best = ranked[0].change.run
    return all(setting_of(best, name) == setting_of(other, name) for name in _FIELDS)


def measured_runs(tables: Iterable[Path], prefixes: Sequence[str]) -> list[_Run]:
    """The runs of tables that were measured and can be predicted, by the prefix of their id."""
    found = []
    for table in tables:
        runs = read_runs(table, lenient=True)
        truth = {row.id: row.step_time_s for row in read_measured(table)}
        names = {row["id"]: row.get("source", "") for row in csv.DictReader(table.open())}
        asked = [r for r in runs if truth.get(r.id) and _source(r.id, names[r.id], prefixes)]
        for each, made in zip(asked, predict_runs(asked), strict=True):
            if made.run is not None and made.step_time_s is not None:
                found.append(
                    _Run(
                        source=_source(each.id, names[each.id], prefixes),
                        run=made.run,
                        measured_s=float(truth[each.id] or math.nan),
                        predicted_s=made.step_time_s.value,
                    )
                )
    return found


def left_out_runs(tables: Sequence[Path], prefixes: Sequence[str]) -> list[_Run]:
    """The same, each source priced with coefficients that its rows had no part in."""
    table = fit_table(
        [run for path in tables for run in read_runs(path, lenient=True)],
        [row for path in tables for row in read_measured(path)],
    )
    found = []
    for prefix in prefixes:
        rows = [n for n, run in enumerate(table.published) if prefix in run.id.lower()]
        if not rows:
            continue
        times = predicted_s(table, fit(table, without=rows))
        found += [
            _Run(
                source=prefix,
                run=table.runs[n],
                measured_s=float(table.measured_s[n]),
                predicted_s=float(times[n]),
            )
            for n in rows
        ]
    return found


def _source(id: str, source: str, prefixes: Sequence[str]) -> str:
    words = f"{id} {source}".lower()
    return next((prefix for prefix in prefixes if prefix in words), "")


def main() -> None:
    """Prints a line per source."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--least-gain", type=float, default=LEAST_GAIN)
    parser.add_argument(
        "--sources", default="vtrain-multi,vtrain-single,ultra,zb_,bloom,internevo,flagperf"
    )
    parser.add_argument("--left-out", action="store_true")
    given = parser.parse_args()
    read = left_out_runs if given.left_out else measured_runs
    runs = read(given.tables, given.sources.split(","))
    print(
        f"{'source':16} {'runs':>5} {'first-ranked':>16} {'all advised':>16} {'first of all':>16}"
    )
    for source, row in sorted(judge(runs, given.least_gain).items()):
        cells = " ".join(_share(*pair) for pair in (row.first, row.every, row.first_of_all))
        print(f"{source:16} {row.runs:5} {cells}")


def _share(count: int, right: int) -> str:
    return f"{right:5}/{count:<5}{100 * right / count if count else math.nan:4.0f} %"


if __name__ == "__main__":
    main()
