"""`recalibrate`: the few physical coefficients of a cluster, from a handful of its own runs.

The shipped coefficients are the prior: each refitted one may move from its shipped value as far as
clusters differ in it, and moves as far as the rows ask for (least squares of the logarithm of
predicted over measured with a Gaussian prior in the logarithm, as in `fit.py`, but around the
shipped values and with everything else held). Beside them each workload takes longer or shorter by
a part of its own (workload_shift.py), which tells of runs of the same model and little of others.
What the rows do not determine stays where it was. How much it helped is said by leaving out one
configuration at a time.
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
from simulator.training_run.fit.interval import step_interval
from simulator.training_run.fit.step_spread import run_spreads
from simulator.training_run.fit.workload_shift import (
    COEFFICIENT_SHARE,
    LoggedWorkload,
    likenesses,
    shift_of,
    slowed,
    workload_of,
)
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficient_kinds import KINDS
from simulator.training_run.step.coefficient_owner import processor_of, stack_owner
from simulator.training_run.step.coefficients import Assigned, CoefficientFile, assign
from simulator.training_run.step.features import Features, features
from simulator.training_run.step.step_time import step_parts
from simulator.values.prediction import Interval

Array = NDArray[np.float64]

CALIBRATION_SCHEMA = "shardwright/run-calibration@1"
METHOD = (
    "least squares of log(predicted / measured) around the shipped coefficients, with a part of "
    "each workload's own (simulator/training_run/fit/recalibrate.py)"
)

# What differs from cluster to cluster: the speed that the devices, their links and the host reach.
# What a framework computes, moves and keeps (attention, passes, optimizer, ...) does not.
REFITTED = (
    "matmul",
    "power",
    "inner",
    "outer",
    "launch_us",
    "cut_step_us",
    "cut_peer_us",
    "cut_exposed",
    "reduce_exposed",
    "reduce_rank_us",
)

# How far runs of one cluster lie from what is predicted of all of them alike: 10 %, the median over
# 49 published clusters of the standard deviation of their residuals (logarithms), whole sources
# left out of the coefficients (2026-11-22). Both spreads of workload_shift.py are in
# units of it, and its COEFFICIENT_SHARE belongs to a noise of 10 %.
NOISE = 0.10
# Beyond so many units of noise a run pulls less and less (Cauchy's loss, as in fit.py).
_CAP = 4.0
# Added to the likeness of a workload to itself, so that workloads that are nearly one can be solved
# for.
_JITTER = 1e-6
# More configurations than this are left out in so many groups.
_MOST_FOLDS = 50
# Half-width of a 90 % interval of a normal distribution, in standard deviations.
_HALF_90 = 1.6448536269514722


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A file of refitted coefficients, `my-cluster.toml`.

    source          the table that it was made from;  runs  rows used
    based_on        content hash of the shipped coefficients that it corrects
    error_before, residual, left_out_error   mean absolute relative error of the step time: with
                    the shipped coefficients, in-sample, and each configuration left out
    interval_scale  half-width of an interval over that of the shipped one, in the logarithm
    values          the refitted coefficients, by the shipped file's names
    workloads       the logged workloads, with how much longer they take beside that
    """

    source: str
    method: str
    date: str
    runs: int
    based_on: str
    error_before: float
    residual: float
    left_out_error: float
    interval_scale: float
    values: Mapping[str, float] = field(default_factory=dict)
    workloads: tuple[LoggedWorkload, ...] = ()

    def __post_init__(self) -> None:
        known = {kind.name for kind in KINDS}
        for name, value in self.values.items():
            if name.partition(".")[0] not in known:
                raise UnknownNameError(
                    "kind of coefficient", name.partition(".")[0], known, where=f"values.{name!r}"
                )
            if not value > 0:
                raise InputError(f"values.{name!r} is {value!r}; a coefficient is above 0")
        if not self.interval_scale > 0:
            raise InputError(f"interval_scale is {self.interval_scale!r}; it must be above 0")


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
        """After over before, less 1."""
        return self.after / self.before - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalibration:
    """What came out; seconds by run, in the order of the runs.

    configurations   runs that differ in more than their id
    workloads        what their own parts are
    """

    coefficients: tuple[Refitted, ...]
    measured_s: tuple[float, ...]
    before_s: tuple[float, ...]
    after_s: tuple[float, ...]
    left_out_s: tuple[float, ...]
    configurations: int
    interval_scale: float
    workloads: tuple[LoggedWorkload, ...] = ()

    @property
    def error_before(self) -> float:
        """Mean absolute relative error with the shipped coefficients."""
        return mean_error(self.before_s, self.measured_s)

    @property
    def error_after(self) -> float:
        """The same with the refitted ones, on the runs that they were fitted on."""
        return mean_error(self.after_s, self.measured_s)

    @property
    def error_left_out(self) -> float:
        """The same on runs that were left out of the fit."""
        return mean_error(self.left_out_s, self.measured_s)

    @property
    def helped(self) -> bool:
        """Whether runs that were left out are predicted better than before."""
        return self.error_left_out < self.error_before


def mean_error(predicted_s: Sequence[float], measured_s: Sequence[float]) -> float:
    """The mean absolute relative error."""
    pairs = zip(predicted_s, measured_s, strict=True)
    return sum(abs(p / m - 1.0) for p, m in pairs) / len(measured_s)


def read_calibration(path: str | Path) -> Calibration:
    """The calibration of a file. Raises DocumentError for a file that is none."""
    return read_document(path, Calibration, schema=CALIBRATION_SCHEMA)


def calibrated(
    shipped: CoefficientFile, calibration: Calibration | None, run: TrainingRun | None = None
) -> CoefficientFile:
    """The shipped coefficients with those of a calibration in their place; for a run (whatever its
    layout) with what its workload takes longer."""
    if calibration is None:
        return shipped
    found = replace(shipped, values={**shipped.values, **calibration.values})
    return found if run is None else slowed(found, shift_of(run, calibration.workloads))


def is_calibrated(run: TrainingRun, calibration: Calibration) -> bool:
    """Whether the calibration saw runs of this device and of this stack."""
    named = {f"matmul.{processor_of(run.device)}", f"launch_us.{stack_owner(run)}"}
    return named <= set(calibration.values)


def calibrated_interval(run: TrainingRun, time_s: float, calibration: Calibration) -> Interval:
    """The shipped interval, its half-width (in the logarithm) scaled where the run is of the
    calibrated cluster: symmetric, since what pulled the shipped band to one side was fitted."""
    if not is_calibrated(run, calibration):
        return step_interval(run, time_s)
    half = _half_width(run) * calibration.interval_scale
    return Interval(value=time_s, low=time_s * math.exp(-half), high=time_s * math.exp(half))


def shipped_hash(shipped: CoefficientFile) -> str:
    """What `Calibration.based_on` holds."""
    return content_hash(shipped.values)


def recalibrate(
    runs: Sequence[TrainingRun], measured_s: Sequence[float], shipped: CoefficientFile
) -> Recalibration:
    """The coefficients of the runs' devices, links and stacks, refitted around the shipped ones.

    measured_s  [runs] seconds per step, above 0

    Raises InputError without runs or with a time that is not above 0.
    """
    if not runs or not all(time_s > 0 and math.isfinite(time_s) for time_s in measured_s):
        raise InputError(
            f"a calibration needs one run or more, each with a step time above 0; got {len(runs)}"
        )
    table = _Table(runs, measured_s, shipped)
    everything = np.arange(len(runs))
    fitted = table.fit(everything)
    folds = _folds(runs)
    left_out = np.empty(len(runs))
    for rows in folds:
        others = np.setdiff1d(everything, rows)
        found = table.fit(others) if len(others) else table.unfitted
        left_out[rows] = table.predicted_s(found)[rows]
    misses = np.abs(np.log(left_out / table.measured_s))
    halves = zip(runs, run_spreads(runs).tolist(), strict=True)
    scores = misses / np.asarray([_half_width(run, spread) for run, spread in halves])
    by_fold = np.asarray([float(np.mean(scores[rows] ** 2)) for rows in folds])
    meanings = {kind.name: kind.meaning for kind in KINDS}
    return Recalibration(
        coefficients=tuple(
            Refitted(
                name=table.assigned.names[i],
                meaning=meanings[table.assigned.names[i].partition(".")[0]],
                before=float(table.prior[i]),
                after=float(fitted.values[i]),
                spread_before=float(COEFFICIENT_SHARE * table.assigned.spreads()[i]),
                spread_after=float(spread),
            )
            for i, spread in zip(table.free.tolist(), fitted.spreads.tolist(), strict=True)
        ),
        measured_s=tuple(table.measured_s.tolist()),
        before_s=tuple(table.predicted_s(table.unfitted).tolist()),
        after_s=tuple(table.predicted_s(fitted).tolist()),
        left_out_s=tuple(left_out.tolist()),
        configurations=len(folds),
        interval_scale=interval_scale(by_fold.tolist()),
        workloads=fitted.workloads,
    )


def interval_scale(squared_scores: Sequence[float]) -> float:
    """Half-width of a 90 % interval, in units of the shipped one, from left-out residuals.

    squared_scores  (log(measured / predicted) / half-width of the shipped interval)^2, one per
                    configuration

    Residuals are taken as normal with mean 0 and unknown variance; the shipped interval counts as
    one more of them (a unit information prior, Kass and Wasserman, JASA 90(431), 1995), so that a
    few runs that happen to agree do not promise too much. The interval of the next run is Student's
    (Gelman et al., Bayesian Data Analysis, 3rd edition, section 2.6).
    """
    from scipy.stats import t as student

    seen = len(squared_scores) + 1
    variance = (_HALF_90**-2 + sum(squared_scores)) / seen
    return float(student.ppf(0.95, seen)) * math.sqrt(variance)


def _half_width(run: TrainingRun, spread: float | None = None) -> float:
    band = step_interval(run, 1.0, spread)
    return 0.5 * math.log(band.high / band.low)


def _folds(runs: Sequence[TrainingRun]) -> list[NDArray[np.intp]]:
    """The rows of each configuration, since one that was measured twice would predict itself; in
    order of appearance, dealt into `_MOST_FOLDS` where there are more."""
    by_configuration: dict[TrainingRun, list[int]] = {}
    for i, run in enumerate(runs):
        by_configuration.setdefault(replace(run, id="", defaults=()), []).append(i)
    count = min(_MOST_FOLDS, len(by_configuration))
    dealt: list[list[int]] = [[] for _ in range(count)]
    for number, rows in enumerate(by_configuration.values()):
        dealt[number % count] += rows
    return [np.asarray(rows, dtype=np.intp) for rows in dealt]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fitted:
    """values  [coefficients];  spreads  left to each refitted one;  workloads  with weights"""

    values: Array
    spreads: Array
    workloads: tuple[LoggedWorkload, ...] = ()


class _Table:
    """The runs with their features, and which of their coefficients are refitted."""

    __slots__ = ("assigned", "free", "measured_s", "prior", "workloads", "x")

    assigned: Assigned
    x: Features

    def __init__(
        self, runs: Sequence[TrainingRun], measured_s: Sequence[float], shipped: CoefficientFile
    ) -> None:
        self.x = features(runs)
        self.assigned = assign(runs)
        self.measured_s = np.asarray(measured_s, dtype=np.float64)
        self.prior = self.assigned.from_file(shipped)
        self.workloads = tuple(map(workload_of, runs))
        kinds = [KINDS[k].name for k in self.assigned.kinds]
        self.free = np.flatnonzero([kind in REFITTED for kind in kinds])

    @property
    def unfitted(self) -> _Fitted:
        """The shipped coefficients."""
        return _Fitted(values=self.prior, spreads=self._spreads)

    @property
    def _spreads(self) -> Array:
        return COEFFICIENT_SHARE * self.assigned.spreads()[self.free]

    def predicted_s(self, fitted: _Fitted) -> Array:
        """[runs] seconds under coefficients, and what their workloads take longer."""
        total_s = step_parts(self.x, self.assigned.of(fitted.values)).total_s
        if not fitted.workloads:
            return total_s
        weights = np.asarray([each.weight for each in fitted.workloads])
        shifts = likenesses(self.workloads, fitted.workloads) @ weights
        return np.asarray(total_s * np.exp(shifts))

    def fit(self, rows: NDArray[np.intp]) -> _Fitted:
        """All coefficients fitted on some rows, the spread left to each refitted one, and the
        workloads of the rows with their weights.

        The unknowns are in units of their prior's spread, log(value / prior) of coefficients and,
        through the Cholesky factor of their covariance, the workloads' parts, so that the prior's
        own residuals are the unknowns themselves; what is left of the spreads is the inverse of the
        Gauss-Newton Hessian (Laplace's approximation).
        """
        from scipy.optimize import least_squares

        x = self.x.rows(rows)
        index = {kind: found[rows] for kind, found in self.assigned.index.items()}
        target = np.log(self.measured_s[rows])
        spreads, count = self._spreads, len(self.free)
        known = tuple(dict.fromkeys(self.workloads[row] for row in rows.tolist()))
        place = np.asarray([known.index(self.workloads[row]) for row in rows.tolist()])
        alike = likenesses(known, known) + _JITTER * np.eye(len(known))
        of_workload = np.asarray([NOISE * each.spread for each in known])
        factor = of_workload[:, None] * np.linalg.cholesky(alike)

        def values_of(moves: Array) -> Array:
            values = self.prior.copy()
            values[self.free] *= np.exp(spreads * moves)
            return values

        def residuals(unknown: Array) -> Array:
            values = values_of(unknown[:count])
            predicted = step_parts(x, {kind: values[i] for kind, i in index.items()}).total_s
            miss = (np.log(predicted) + (factor @ unknown[count:])[place] - target) / NOISE
            soft = np.sign(miss) * _CAP * np.sqrt(np.log1p((miss / _CAP) ** 2))
            return np.concatenate([soft, unknown])

        found = least_squares(residuals, np.zeros(count + len(known)), method="trf", max_nfev=60)
        covariance = np.linalg.inv(found.jac.T @ found.jac)
        own = factor @ found.x[count:]
        weights = np.linalg.solve(alike, own)
        return _Fitted(
            values=values_of(found.x[:count]),
            spreads=spreads * np.sqrt(np.diag(covariance)[:count]),
            workloads=tuple(
                replace(each, weight=weight)
                for each, weight in zip(known, weights.tolist(), strict=True)
            ),
        )
