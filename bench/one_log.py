"""How much do one or two logs of a cluster help to predict its other runs? By source and device.

    python -m bench.one_log RUNS.csv [MORE.csv ...] [--picks 6] [--logs 1,2]

Every source is left out of the fitted coefficients whole. Its runs are then a stranger's: of each
device and framework with three runs or more, one run is taken as the log that the stranger has
(its step time is written as a log and read back), the coefficients are calibrated on it alone, and
all runs of another configuration are predicted with and without; those of the log's own model and
precision are counted apart too. Which run is taken is by hash, `--picks` of them in turn; errors
are means over both. Locked sources (evidence/prospective.py) are left out.
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
from numpy.typing import NDArray
from shardwright_frameworks.logs.read_log import read_training_log

from evidence.coefficient_fit import Fitted
from evidence.cross_fit import FitTable, fit, fit_table
from evidence.fit_spread import knowledge_of
from evidence.groups import source_of
from evidence.prospective import is_locked
from profiles.errors import InputError
from shardwright.runs.run_table import read_measured, read_runs
from simulator.training_run.fit.recalibration import recalibrate
from simulator.training_run.fit.step_spread import Knowledge
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficients import CoefficientFile
from simulator.training_run.step.step_time import price_runs

Array = NDArray[np.float64]

# Runs of a cluster at least, and at most: where it has more, the others are predicted for so many
# of them; and how many of them are taken as its log in turn.
FEWEST, MOST, PICKS = 3, 60, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class OneLog:
    """A cluster's mean absolute errors on runs that the logs are not of; alike  those of the logs'
    models and precisions, before and after, where there are any."""

    source: str
    device: str
    stack: str
    runs: int
    logs: int
    before: float
    after: float
    alike: tuple[float, float] | None

    @property
    def enough(self) -> bool:
        """Half of the error, or under 5 %."""
        return is_enough(self.before, self.after)


def is_enough(before: float, after: float) -> bool:
    """Half of the error, or under 5 %."""
    return after <= 0.5 * before or after < 0.05


def one_log(table: FitTable, *, picks: int, logs: Sequence[int] = (1,)) -> Iterator[OneLog]:
    """Each cluster of each source, left out of the coefficients."""
    sources = np.asarray([source_of(run.id) for run in table.published])
    whole = fit(table)
    for source in sorted(set(sources.tolist())):
        rows = np.flatnonzero(sources == source)
        clusters: dict[tuple[str, str], list[int]] = {}
        for row in rows.tolist():
            run = table.runs[row]
            clusters.setdefault((run.device, run.stack), []).append(row)
        if all(len(mine) < FEWEST for mine in clusters.values()):
            continue
        fitted = fit(table, without=rows.tolist(), start=whole)
        base = _file(table, fitted)
        kept = np.setdiff1d(np.flatnonzero(table.weights > 0), rows)
        known = knowledge_of(table.assigned, fitted, kept)
        for (device, stack), mine in sorted(clusters.items()):
            chosen = sorted(mine, key=lambda row: hash_of(table.runs[row].id))[:MOST]
            if len(chosen) < FEWEST:
                continue
            for count in logs:
                found = _cluster(table, chosen, base, known, picks, count)
                if found is not None:
                    yield OneLog(
                        source=source,
                        device=device,
                        stack=stack,
                        runs=len(mine),
                        logs=count,
                        before=found.before,
                        after=found.after,
                        alike=found.alike,
                    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Errors:
    before: float
    after: float
    alike: tuple[float, float] | None


def _cluster(
    table: FitTable,
    rows: Sequence[int],
    base: CoefficientFile,
    known: Knowledge,
    picks: int,
    logs: int,
) -> _Errors | None:
    runs = [table.runs[row] for row in rows]
    measured = table.measured_s[np.asarray(rows)]
    keys = [replace(run, id="", defaults=()) for run in runs]
    kinds = [(run.model, run.precision, run.lora) for run in runs]
    before: list[float] = []
    after: list[float] = []
    alike: list[tuple[float, float]] = []
    for pick in range(min(picks, len(runs))):
        order = [(pick + place) % len(runs) for place in range(len(runs))]
        first = {keys[i]: i for i in reversed(order)}
        taken = [i for i in order if first[keys[i]] == i][:logs]
        logged = {keys[i] for i in taken}
        others = [i for i, key in enumerate(keys) if key not in logged]
        if len(taken) < logs or len(others) < FEWEST - 1:
            continue
        logged_s = [_through_a_log(float(measured[i])) for i in taken]
        made = recalibrate([runs[i] for i in taken], logged_s, base, known)
        values = {**base.values, **{each.name: each.after for each in made.coefficients}}
        left = [runs[i] for i in others]
        truth = measured[np.asarray(others)]
        errors = [
            np.abs(predicted / truth - 1.0)
            for predicted in (
                _predicted_s(left, base),
                _predicted_s(left, replace(base, values=values)),
            )
        ]
        before.append(float(errors[0].mean()))
        after.append(float(errors[1].mean()))
        same = np.asarray([kinds[i] in {kinds[j] for j in taken} for i in others])
        if same.any():
            alike.append((float(errors[0][same].mean()), float(errors[1][same].mean())))
    if not before:
        return None
    return _Errors(
        before=float(np.mean(before)),
        after=float(np.mean(after)),
        alike=(float(np.mean([b for b, _ in alike])), float(np.mean([a for _, a in alike])))
        if alike
        else None,
    )


def _predicted_s(runs: Sequence[TrainingRun], file: CoefficientFile) -> Array:
    return price_runs(runs, file).parts.total_s


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
        **dict(zip(assigned.family_kinds, fitted.family_values.tolist(), strict=True)),
        **dict(zip(assigned.names, fitted.values.tolist(), strict=True)),
    }
    return CoefficientFile(
        source="", method="", date="", runs=len(table.runs), residual=fitted.residual, values=values
    )


def hash_of(name: str) -> str:
    """By which runs are put in an order that has nothing to do with what they are."""
    return hashlib.sha256(name.encode()).hexdigest()


def summary(found: Sequence[OneLog]) -> str:
    """How many clusters are better, worse and good enough, of all other runs and of those alike."""
    lines = []
    for count in sorted({each.logs for each in found}):
        mine = [each for each in found if each.logs == count]
        every = [(each.source, each.before, each.after) for each in mine]
        alike = [(each.source, *each.alike) for each in mine if each.alike is not None]
        for words, rows in (("all other runs", every), ("runs of the logs' models", alike)):
            before = np.asarray([b for _, b, _ in rows])
            after = np.asarray([a for _, _, a in rows])
            good = [is_enough(b, a) for _, b, a in rows]
            names = sorted({row[0] for row, enough in zip(rows, good, strict=True) if enough})
            lines.append(
                f"{count} log{'s' if count > 1 else ''}, {words} of {len(rows)} clusters: mean "
                f"{before.mean():.1%} -> {after.mean():.1%}, median {np.median(before):.1%} -> "
                f"{np.median(after):.1%}; {int((after <= 0.5 * before).sum())} halve, "
                f"{int((after < 0.05).sum())} under 5 % ({int((before < 0.05).sum())} before), "
                f"{sum(good)} of either, of {len(names)} sources ({', '.join(names)}); "
                f"{int((after > before).sum())} worse, {int((after > 1.1 * before).sum())} by a "
                "tenth or more"
            )
    return "\n".join(lines)


def main() -> None:
    """Prints one line per cluster, and how many reach half of their error or 5 %."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--picks", type=int, default=PICKS)
    parser.add_argument("--logs", default="1,2")
    asked = parser.parse_args()
    published = tuple(
        run
        for path in asked.tables
        for run in read_runs(path, lenient=True)
        if not is_locked(run.id)
    )
    measured = tuple(row for path in asked.tables for row in read_measured(path))
    logs = tuple(int(text) for text in asked.logs.split(","))
    found = []
    for each in one_log(fit_table(published, measured), picks=asked.picks, logs=logs):
        found.append(each)
        alike = (
            "" if each.alike is None else f", alike {each.alike[0]:6.1%} -> {each.alike[1]:6.1%}"
        )
        sys.stdout.write(
            f"{each.source:17} {each.device:16} {each.stack:20} {each.runs:4} runs, {each.logs} "
            f"logs, others {each.before:6.1%} -> {each.after:6.1%}{alike}"
            f"{'  enough' if each.enough else ''}\n"
        )
        sys.stdout.flush()
    sys.stdout.write(f"{summary(found)}\n")


if __name__ == "__main__":
    main()
