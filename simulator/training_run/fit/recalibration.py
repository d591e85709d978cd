"""`recalibrate`: the coefficients of one cluster, from its own logged runs.

A user's cluster is one more source of the fitted model (evidence/coefficient_fit.py), and a logged
run is an observation of it. The prior of each coefficient is the shipped value with its uncertainty
and the variance between sources; the logs move it by Bayes' rule (maximum a posteriori with
Laplace's approximation, Gelman et al., Bayesian Data Analysis, 3rd edition, section 4.1).
Unaffected coefficients keep their values. Each configuration is left out once to report how much
the logs help.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from profiles.document import content_hash, read_document
from profiles.errors import InputError, UnknownNameError
from simulator.training_run.fit.step_spread import Knowledge, coefficient_spreads, shipped_knowledge
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficient_kinds import BY_NAME, KINDS
from simulator.training_run.step.coefficients import CoefficientFile, shipped_coefficients
from simulator.training_run.step.step_slopes import log_slopes
from simulator.training_run.step.step_time import price_runs, step_parts

Array = NDArray[np.float64]

CALIBRATION_SCHEMA = "shardwright/run-calibration@2"
METHOD = (
    "logged runs as observations of a new source of the fitted model "
    "(simulator/training_run/fit/recalibration.py)"
)
# With more configurations, they are left out in this many groups.
_MOST_FOLDS = 50
# Standard deviation of the logarithm of one logged run within its cluster, an effect of its
# configuration. Of 0.06, 0.1 and 0.2, the one with the lowest mean error on the other runs of a
# held-out source (python -m bench.one_log, 55 clusters, 2026-11-24).
ROW_SPREAD = 0.1
# Logs with a residual above this many predicted standard deviations get less weight.
_CAP = 2.0
_MOST_STEPS = 30
_CONVERGED = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A file of refitted coefficients, `my-cluster.toml`.

    source          the table or logs used;  runs  number of rows used
    based_on        content hash of the corrected shipped coefficients
    error_before, residual, left_out_error   mean absolute relative error of the step time with the
                    shipped coefficients, on the logged runs, and with each configuration left out
    values          the refitted coefficients by name
    covariance      rows of the lower half of the covariance of their logarithms, in the order of
                    `values`; empty if only links were measured
    """

    source: str
    method: str
    date: str
    runs: int
    based_on: str
    error_before: float
    residual: float
    left_out_error: float
    values: Mapping[str, float] = field(default_factory=dict)
    covariance: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        for name, value in self.values.items():
            if name.partition(".")[0] not in BY_NAME:
                raise UnknownNameError(
                    "kind of coefficient", name.partition(".")[0], BY_NAME, where=f"values.{name!r}"
                )
            if not value > 0:
                raise InputError(f"values.{name!r} is {value!r}; a coefficient must be above 0")
        lengths = [len(row) for row in self.covariance]
        if self.covariance and lengths != list(range(1, len(self.values) + 1)):
            raise InputError(
                f"covariance has rows of {lengths} numbers; {len(self.values)} values need rows of "
                f"1 to {len(self.values)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refitted:
    """One coefficient; spread_before and spread_after are standard deviations of its logarithm."""

    name: str
    meaning: str
    before: float
    after: float
    spread_before: float
    spread_after: float

    @property
    def moved(self) -> float:
        """After over before, minus 1."""
        return self.after / self.before - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalibration:
    """The result; seconds by run, in the order of the runs.

    covariance       [coefficients] squared, of their logarithms
    configurations   runs that differ in more than their id
    """

    coefficients: tuple[Refitted, ...]
    covariance: Array
    measured_s: tuple[float, ...]
    before_s: tuple[float, ...]
    after_s: tuple[float, ...]
    left_out_s: tuple[float, ...]
    configurations: int

    @property
    def error_before(self) -> float:
        """Mean absolute relative error with the shipped coefficients."""
        return mean_error(self.before_s, self.measured_s)

    @property
    def error_after(self) -> float:
        """Mean absolute relative error with the refitted ones, on the runs of the fit."""
        return mean_error(self.after_s, self.measured_s)

    @property
    def error_left_out(self) -> float:
        """Mean absolute relative error on runs left out of the fit."""
        return mean_error(self.left_out_s, self.measured_s)

    @property
    def helped(self) -> bool:
        """Whether left-out runs are predicted better than before."""
        return self.error_left_out < self.error_before


def mean_error(predicted_s: Sequence[float], measured_s: Sequence[float]) -> float:
    """The mean absolute relative error."""
    pairs = zip(predicted_s, measured_s, strict=True)
    return sum(abs(p / m - 1.0) for p, m in pairs) / len(measured_s)


def read_calibration(path: str | Path) -> Calibration:
    """The calibration of a file. Raises DocumentError for any other file."""
    return read_document(path, Calibration, schema=CALIBRATION_SCHEMA)


def calibrated(calibration: Calibration | None) -> CoefficientFile:
    """The shipped coefficients, replaced by those of a calibration."""
    shipped = shipped_coefficients()
    if calibration is None:
        return shipped
    return replace(shipped, values={**shipped.values, **calibration.values})


def calibrated_knowledge(calibration: Calibration | None) -> Knowledge:
    """The uncertainty of coefficients after a calibration: calibrated ones have their posterior
    covariance and no variance between sources."""
    shipped = shipped_knowledge()
    if calibration is None or not calibration.covariance:
        return shipped
    names = tuple(calibration.values)
    covariance = np.zeros((len(names), len(names)))
    for i, row in enumerate(calibration.covariance):
        covariance[i, : i + 1] = covariance[: i + 1, i] = row
    others = tuple(name for name in shipped.names if name not in calibration.values)
    kept = [shipped.places[name] for name in others]
    count = len(names)
    whole = np.zeros((count + len(others), count + len(others)))
    whole[:count, :count] = covariance
    whole[count:, count:] = shipped.covariance[np.ix_(kept, kept)]
    return replace(
        shipped, names=(*names, *others), covariance=whole, logged=frozenset(calibration.values)
    )


def shipped_hash() -> str:
    """The value of `Calibration.based_on` for the shipped coefficients."""
    return content_hash(shipped_coefficients().values)


def recalibrate(
    runs: Sequence[TrainingRun],
    measured_s: Sequence[float],
    shipped: CoefficientFile,
    known: Knowledge | None = None,
) -> Recalibration:
    """The coefficients of the cluster of the logged runs.

    measured_s  [runs] seconds per step, above 0
    known       uncertainty of the coefficients `shipped`; None: as measured in the project's fit

    Raises InputError without runs or for a time that is not above 0.
    """
    if not runs or not all(time_s > 0 and math.isfinite(time_s) for time_s in measured_s):
        raise InputError(
            f"a calibration needs one run or more, each with a step time above 0; got {len(runs)}"
        )
    table = _Table(runs, measured_s, shipped, shipped_knowledge() if known is None else known)
    everything = np.arange(len(runs))
    moves, covariance = table.fit(everything)
    folds = _folds(runs)
    left_out = np.empty(len(runs))
    for rows in folds:
        others = np.setdiff1d(everything, rows)
        found = table.fit(others)[0] if len(others) else np.zeros_like(moves)
        left_out[rows] = table.predicted_s(found)[rows]
    before = coefficient_spreads(table.assigned, table.known)
    after = np.sqrt(np.diag(covariance))
    return Recalibration(
        coefficients=tuple(
            Refitted(
                name=name,
                meaning=KINDS[kind].meaning,
                before=float(table.prior[i]),
                after=float(table.prior[i] * math.exp(moves[i])),
                spread_before=float(before[i]),
                spread_after=float(after[i]),
            )
            for i, (name, kind) in enumerate(
                zip(table.assigned.names, table.assigned.kinds, strict=True)
            )
        ),
        covariance=covariance,
        measured_s=tuple(table.measured_s.tolist()),
        before_s=tuple(table.predicted_s(np.zeros_like(moves)).tolist()),
        after_s=tuple(table.predicted_s(moves).tolist()),
        left_out_s=tuple(left_out.tolist()),
        configurations=len(folds),
    )


def _folds(runs: Sequence[TrainingRun]) -> list[NDArray[np.intp]]:
    """Groups of rows to leave out together: the rows of each configuration, in order of appearance
    (a repeated configuration would predict itself), in at most `_MOST_FOLDS` groups."""
    by_configuration: dict[TrainingRun, list[int]] = {}
    for i, run in enumerate(runs):
        by_configuration.setdefault(replace(run, id="", defaults=()), []).append(i)
    count = min(_MOST_FOLDS, len(by_configuration))
    dealt: list[list[int]] = [[] for _ in range(count)]
    for number, rows in enumerate(by_configuration.values()):
        dealt[number % count] += rows
    return [np.asarray(rows, dtype=np.intp) for rows in dealt]


class _Table:
    """The logged runs with the prior of their coefficients."""

    def __init__(
        self,
        runs: Sequence[TrainingRun],
        measured_s: Sequence[float],
        shipped: CoefficientFile,
        known: Knowledge,
    ) -> None:
        priced = price_runs(runs, shipped)
        self.x, self.assigned, self.prior = priced.x, priced.assigned, priced.values
        self.measured_s = np.asarray(measured_s, dtype=np.float64)
        self.known = known
        self.covariance = self._prior_covariance()

    def _prior_covariance(self) -> Array:
        """[coefficients, coefficients] covariance of the logarithms, for a new source."""
        places = np.asarray([self.known.places.get(name, -1) for name in self.assigned.names])
        fitted = np.flatnonzero(places >= 0)
        count = len(self.assigned.names)
        covariance = np.zeros((count, count))
        covariance[np.ix_(fitted, fitted)] = self.known.covariance[
            np.ix_(places[fitted], places[fitted])
        ]
        spreads = coefficient_spreads(self.assigned, self.known)
        covariance[np.arange(count), np.arange(count)] = spreads**2
        return covariance

    def predicted_s(self, moves: Array) -> Array:
        """[runs] seconds after adding `moves` to the logarithms of the coefficients."""
        return step_parts(self.x, self.assigned.of(self._moved(moves))).total_s

    def _moved(self, moves: Array) -> Array:
        values = self.prior * np.exp(moves)
        least = [KINDS[k].least for k in self.assigned.kinds]
        most = [KINDS[k].most for k in self.assigned.kinds]
        return np.asarray(np.clip(values, least, most))

    def fit(self, rows: NDArray[np.intp]) -> tuple[Array, Array]:
        """Changes [coefficients] of the logarithms, fitted to some of the rows, and their
        covariance.

        Gauss-Newton in the space of the rows: K = C J' (J C J' + noise^2)^-1.
        """
        x = self.x.rows(rows)
        assigned = self.assigned.rows(rows)
        target = np.log(self.measured_s[rows])
        moves = np.zeros(len(self.assigned.names))
        covariance = self.covariance
        noise = np.zeros((rows.size, rows.size))
        for _ in range(_MOST_STEPS):
            values = assigned.of(self._moved(moves))
            slopes = log_slopes(x, values)
            jacobian = np.zeros((rows.size, moves.size))
            for kind, index in assigned.index.items():
                jacobian[np.arange(rows.size), index] += slopes[kind]
            miss = target - np.log(step_parts(x, values).total_s)
            spread = jacobian @ covariance @ jacobian.T
            if not noise.any():
                expected = np.sqrt(np.diag(spread) + ROW_SPREAD**2)
                noise = np.diag((ROW_SPREAD * np.maximum(1.0, np.abs(miss) / expected / _CAP)) ** 2)
            gain = covariance @ jacobian.T @ np.linalg.inv(spread + noise)
            found = gain @ (miss + jacobian @ moves)
            change = float(np.max(np.abs(found - moves)))
            # Half steps: shares are clipped at their limits, so the model is not smooth there.
            moves = found if change < _CONVERGED else 0.5 * (moves + found)
            if change < _CONVERGED:
                break
        return moves, covariance - gain @ jacobian @ covariance
