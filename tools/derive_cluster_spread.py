"""How far clusters and workloads differ: the numbers of fit/workload_shift.py.

    python -m tools.derive_cluster_spread RUNS.csv [MORE.csv ...]

Each source is left out of the coefficients; its runs then miss by r (logarithm of measured over
predicted). Of a cluster (source, device, framework) one run is the log, and what it tells of
another is, as in Gaussian process regression (Rasmussen and Williams, 2006, equation 2.23),

    k(other, log) / (k(log, log) + 1)  r(log)

with noise 1 and the covariance of recalibrate.py, linear in the coefficients: a^2 times the sum
over those that both take of their kinds' squared spreads and both slopes, and the workloads'. The
numbers are those with the least mean absolute error of the other runs; sources weigh the same,
clusters of a source too, runs of a cluster too. What they are worth is said with nested folds:
those for each source are found without it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.one_log import FEWEST, MOST, PICKS, hash_of
from profiles.published.measured import read_measured
from profiles.published.run_table import read_runs
from shardwright.validate.cross_fit import FitTable, fit, fit_table
from shardwright.validate.groups import source_of
from simulator.training_run.fit.recalibrate import NOISE, REFITTED
from simulator.training_run.fit.workload_shift import workload_of
from simulator.training_run.step.coefficient_kinds import KINDS
from simulator.training_run.step.coefficients import shipped_coefficients
from simulator.training_run.step.step_time import step_parts

Array = NDArray[np.float64]

_NAMES = (
    "COEFFICIENT_SHARE",
    "PLAIN_SPREAD",
    "STRANGE_SPREAD",
    "SIZE_SCALE",
    "SEQ_SCALE",
)
# Where the search begins, and how far (in the logarithm) it may go without a reason: a number
# three times these costs as much as 0.013 % of error.
_START = np.log(np.asarray([8.0, 1.0, 2.0, 0.5, 1.0]))
_HOLD = 1e-3 / 9.0
_NUDGE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """[pairs] of a log and another run of its cluster, and what both share.

    logged, other   what they miss by;  weight  sources weigh the same
    shared, own     sum over coefficients, of both and of the log with itself
    alike           whether workloads are of one kind;  size, seq  logarithms of their ratios
    strange         whether the log is of a strange workload
    """

    source: NDArray[np.str_]
    cluster: NDArray[np.str_]
    logged: Array
    other: Array
    weight: Array
    shared: Array
    own: Array
    alike: NDArray[np.bool_]
    size: Array
    seq: Array
    strange: NDArray[np.bool_]

    def told(self, numbers: Array) -> Array:
        """[pairs] by how much the other run's prediction moves."""
        share, plain, strange, size, seq = np.exp(numbers)
        spread = np.where(self.strange, strange, plain) ** 2
        like = np.exp(-0.5 * ((self.size / size) ** 2 + (self.seq / seq) ** 2))
        moved = share**2 * self.shared + spread * np.where(self.alike, like, 0.0)
        return np.asarray(self.logged * moved / (share**2 * self.own + spread + 1.0))

    def errors(self, told: Array) -> Array:
        """[pairs] absolute relative errors of the other runs."""
        return np.asarray(np.abs(np.expm1(np.clip(told - self.other, -3.0, 3.0))))


def pairs_of(table: FitTable, *, progress: Callable[[str], None]) -> Pairs:
    """The pairs of every cluster of three runs or more."""
    sources = np.asarray([source_of(run.id) for run in table.published])
    rows: dict[str, list[object]] = {name: [] for name in Pairs.__slots__}
    for source in sorted(set(sources.tolist())):
        mine = np.flatnonzero(sources == source)
        clusters = _clusters(table, mine)
        if not clusters:
            continue
        missed, slopes = _missed(table, mine)
        place = {row: i for i, row in enumerate(mine.tolist())}
        for name, kept in clusters.items():
            found = list(_picks(table, kept))
            for log, others in found:
                for other in others:
                    a, b = workload_of(table.runs[log]), workload_of(table.runs[other])
                    i, j = place[log], place[other]
                    rows["source"].append(source)
                    rows["cluster"].append(name)
                    rows["logged"].append(missed[i])
                    rows["other"].append(missed[j])
                    rows["weight"].append(1.0 / (len(clusters) * len(found) * len(others)))
                    rows["shared"].append(_shared(table, slopes, place, log, other))
                    rows["own"].append(_shared(table, slopes, place, log, log))
                    same = replace(b, parameters=a.parameters, seq_len=a.seq_len)
                    rows["alike"].append(a == same)
                    rows["size"].append(math.log(a.parameters / b.parameters))
                    rows["seq"].append(math.log(a.seq_len / b.seq_len))
                    rows["strange"].append(a.experts or a.adapters or a.low_precision)
        progress(source)
    return Pairs(**{name: np.asarray(values) for name, values in rows.items()})


def _clusters(table: FitTable, rows: NDArray[np.intp]) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in sorted(rows.tolist(), key=lambda row: hash_of(table.runs[row].id)):
        run = table.runs[row]
        found.setdefault(f"{source_of(run.id)}, {run.device}, {run.stack}", []).append(row)
    return {name: mine[:MOST] for name, mine in sorted(found.items()) if len(mine) >= FEWEST}


def _picks(table: FitTable, rows: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    keys = {row: replace(table.runs[row], id="", defaults=()) for row in rows}
    for log in rows[:PICKS]:
        others = [row for row in rows if keys[row] != keys[log]]
        if len(others) >= FEWEST - 1:
            yield log, others


def _missed(table: FitTable, rows: NDArray[np.intp]) -> tuple[Array, Array]:
    """[rows] what they miss by without their source, [rows, kinds] slopes of the logarithm of their
    step in those of their coefficients."""
    begin = table.assigned.from_file(shipped_coefficients())
    fitted = fit(table, without=rows.tolist(), start=begin)
    x = table.features.rows(rows)
    c = {kind: fitted.values[index[rows]] for kind, index in table.assigned.index.items()}
    base = np.log(step_parts(x, c).total_s)
    slopes = []
    for kind in REFITTED:
        nudged = {**c, kind: c[kind] * math.exp(_NUDGE)}
        slopes.append((np.log(step_parts(x, nudged).total_s) - base) / _NUDGE)
    return np.log(table.measured_s[rows]) - base, np.stack(slopes, axis=1)


def _shared(table: FitTable, slopes: Array, place: Mapping[int, int], a: int, b: int) -> float:
    spreads = {kind.name: kind.spread for kind in KINDS}
    total = 0.0
    for k, kind in enumerate(REFITTED):
        index = table.assigned.index[kind]
        if index[a] == index[b]:
            total += spreads[kind] ** 2 * slopes[place[a], k] * slopes[place[b], k]
    return total


def estimated(pairs: Pairs, weight: Array) -> Array:
    """Logarithms of the five numbers with the least weighed error."""
    from scipy.optimize import minimize

    def loss(numbers: Array) -> float:
        errors = pairs.errors(pairs.told(numbers))
        held = _HOLD * float(((numbers - _START) ** 2).sum())
        return float((weight * errors).sum() / weight.sum()) + held

    found = minimize(
        loss, _START, method="Nelder-Mead", options={"maxiter": 500, "xatol": 0.03, "fatol": 2e-5}
    )
    return np.asarray(found.x)


def main() -> None:
    """Prints the numbers, and the errors before and after a log with nested folds."""
    published = tuple(run for path in sys.argv[1:] for run in read_runs(Path(path), lenient=True))
    measured = tuple(row for path in sys.argv[1:] for row in read_measured(Path(path)))
    pairs = pairs_of(fit_table(published, measured), progress=_say)
    numbers = np.exp(estimated(pairs, pairs.weight)) * np.asarray([NOISE, 1.0, 1.0, 1.0, 1.0])
    for name, value in zip(_NAMES, numbers.tolist(), strict=True):
        sys.stdout.write(f"{name}: {value:.3g}\n")
    told = np.zeros(pairs.logged.size)
    for source in sorted(set(pairs.source.tolist())):
        mine = pairs.source == source
        told[mine] = pairs.told(estimated(pairs, np.where(mine, 0.0, pairs.weight)))[mine]
    before, after = [], []
    errors = (pairs.errors(np.zeros(told.size)), pairs.errors(told))
    for cluster in sorted(set(pairs.cluster.tolist())):
        mine = pairs.cluster == cluster
        weight = pairs.weight[mine] / pairs.weight[mine].sum()
        before.append(float((errors[0][mine] * weight).sum()))
        after.append(float((errors[1][mine] * weight).sum()))
    worse = sum(b < a for b, a in zip(before, after, strict=True))
    sys.stdout.write(
        f"nested, {len(before)} clusters: mean {np.mean(before):.1%} -> {np.mean(after):.1%}, "
        f"median {np.median(before):.1%} -> {np.median(after):.1%}, {worse} worse\n"
    )


def _say(source: str) -> None:
    sys.stderr.write(f"{source}\n")


if __name__ == "__main__":
    main()
