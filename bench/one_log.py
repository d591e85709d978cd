"""How much does one log of a cluster help to predict its other runs? By source and device.

    python -m bench.one_log RUNS.csv [MORE.csv ...] [--picks 6]

Every source is left out of the fitted coefficients whole. Its runs are then a stranger's: of each
device and framework with three runs or more, one run is taken as the log that the stranger has
(its step time is written as a log and read back), the coefficients are calibrated on it alone, and
all runs of another configuration are predicted with and without. Which run is taken is by hash,
`--picks` of them in turn; errors are means over both.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from interop.logs.read_log import read_training_log
from profiles.errors import InputError
from profiles.published.measured import read_measured
from profiles.published.run_table import read_runs
from shardwright.validate.cross_fit import FitTable, fit, fit_table
from shardwright.validate.groups import source_of
from simulator.training_run.fit.fit import Fitted
from simulator.training_run.fit.recalibrate import recalibrate
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficients import CoefficientFile, assign
from simulator.training_run.step.features import features
from simulator.training_run.step.step_time import step_parts

_FEWEST = 3
# Where a source has more runs of one device, the others are predicted for so many of them.
_MOST = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class OneLog:
    """A cluster's mean absolute errors on runs that the log is not of."""

    source: str
    device: str
    stack: str
    runs: int
    before: float
    after: float

    @property
    def enough(self) -> bool:
        """Half of the error, or under 5 %."""
        return self.after <= 0.5 * self.before or self.after < 0.05


def one_log(table: FitTable, *, picks: int) -> Iterator[OneLog]:
    """Each cluster of each source, left out of the coefficients."""
    sources = np.asarray([source_of(run.id) for run in table.published])
    for source in sorted(set(sources.tolist())):
        rows = np.flatnonzero(sources == source)
        clusters: dict[tuple[str, str], list[int]] = {}
        for row in rows.tolist():
            run = table.runs[row]
            clusters.setdefault((run.device, run.stack), []).append(row)
        if all(len(mine) < _FEWEST for mine in clusters.values()):
            continue
        base = _file(table, fit(table, without=rows.tolist()))
        for (device, stack), mine in sorted(clusters.items()):
            kept = sorted(mine, key=lambda row: _hash(table.runs[row].id))[:_MOST]
            if len(kept) < _FEWEST:
                continue
            found = _cluster(table, kept, base, picks)
            if found is not None:
                yield OneLog(
                    source=source,
                    device=device,
                    stack=stack,
                    runs=len(mine),
                    before=found[0],
                    after=found[1],
                )


def _cluster(
    table: FitTable, rows: Sequence[int], base: CoefficientFile, picks: int
) -> tuple[float, float] | None:
    runs = [table.runs[row] for row in rows]
    measured = table.measured_s[np.asarray(rows)]
    keys = [replace(run, id="", defaults=()) for run in runs]
    before, after = [], []
    for pick in range(min(picks, len(runs))):
        others = [i for i, key in enumerate(keys) if key != keys[pick]]
        if len(others) < _FEWEST - 1:
            continue
        logged_s = _through_a_log(float(measured[pick]))
        made = recalibrate([runs[pick]], [logged_s], base)
        values = {**base.values, **{each.name: each.after for each in made.coefficients}}
        left = [runs[i] for i in others]
        truth = measured[np.asarray(others)]
        before.append(_error(left, truth, base))
        after.append(_error(left, truth, replace(base, values=values)))
    return (float(np.mean(before)), float(np.mean(after))) if before else None


def _error(runs: Sequence[TrainingRun], measured_s: np.ndarray, file: CoefficientFile) -> float:
    assigned = assign(runs)
    predicted = step_parts(features(runs), assigned.of(assigned.from_file(file))).total_s
    return float(np.abs(predicted / measured_s - 1.0).mean())


def _through_a_log(step_s: float) -> float:
    """The step time as a log prints it and is read: with warm-up, noise of 1 % and a stall."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        factors = [9.0, 2.0] + [1.0 + 0.01 * (n % 5 - 2) / 2 for n in range(40)]
        factors[20] = 12.0
        path.write_text(
            "".join(
                f"completed step: {n}, seconds: {step_s * factor:.6f}, loss: 2.0\n"
                for n, factor in enumerate(factors)
            ),
            encoding="utf-8",
        )
        found = read_training_log(path).steady_step_time_s
    if found is None:
        raise InputError("the log that was written tells no step time")
    return found


def _file(table: FitTable, fitted: Fitted) -> CoefficientFile:
    assigned = table.assigned
    values = {
        **{f"{kind}.*": value for kind, value in fitted.kind_values.items()},
        **dict(zip(assigned.family_names, fitted.family_values.tolist(), strict=True)),
        **dict(zip(assigned.names, fitted.values.tolist(), strict=True)),
    }
    return CoefficientFile(
        source="", method="", date="", runs=len(table.runs), residual=fitted.residual, values=values
    )


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def main() -> None:
    """Prints one line per cluster, and how many reach half of their error or 5 %."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--picks", type=int, default=6)
    asked = parser.parse_args()
    published = tuple(run for path in asked.tables for run in read_runs(path, lenient=True))
    measured = tuple(row for path in asked.tables for row in read_measured(path))
    found = []
    for each in one_log(fit_table(published, measured), picks=asked.picks):
        found.append(each)
        sys.stdout.write(
            f"{each.source:17} {each.device:16} {each.stack:20} {each.runs:4} runs, others "
            f"{each.before:6.1%} -> {each.after:6.1%}{'  enough' if each.enough else ''}\n"
        )
        sys.stdout.flush()
    enough = [each for each in found if each.enough]
    sources = sorted({each.source for each in enough})
    sys.stdout.write(
        f"{len(enough)} of {len(found)} clusters reach half of their error or 5 %, of "
        f"{len(sources)} sources: {', '.join(sources)}; mean "
        f"{np.mean([each.before for each in found]):.1%} -> "
        f"{np.mean([each.after for each in found]):.1%}\n"
    )


if __name__ == "__main__":
    main()
