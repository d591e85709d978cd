"""A user's cluster as a new source of the fitted model: what logged runs change."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from evidence.groups import source_of
from profiles.errors import InputError, UnknownNameError
from shardwright.runs.complete import complete_run
from shardwright.runs.run import FIGURES
from shardwright.runs.run_table import read_runs
from simulator.training_run.fit.interval import run_intervals, step_interval
from simulator.training_run.fit.recalibration import (
    ROW_SPREAD,
    Calibration,
    Recalibration,
    calibrated,
    calibrated_knowledge,
    recalibrate,
)
from simulator.training_run.fit.step_spread import (
    Knowledge,
    coefficient_spreads,
    shipped_knowledge,
)
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficient_kinds import KINDS
from simulator.training_run.step.coefficients import CoefficientFile, assign, shipped_coefficients
from simulator.training_run.step.features import features
from simulator.training_run.step.step_slopes import log_slopes
from simulator.training_run.step.step_time import price_runs, step_parts
from simulator.values.prediction import Interval


def some_runs(prefix: str, count: int) -> list[TrainingRun]:
    rows = [run for run in read_runs(FIGURES) if run.id.startswith(prefix)][:count]
    return [complete_run(run) for run in rows]


def a_source() -> str:
    """The source with most rows in the project's own table."""
    names = [source_of(run.id) for run in read_runs(FIGURES)]
    return max(sorted(set(names)), key=names.count)


def times(runs: list[TrainingRun], file: CoefficientFile) -> np.ndarray:
    assigned = assign(runs)
    return step_parts(features(runs), assigned.of(assigned.from_file(file))).total_s


def interval_of(run: TrainingRun, made: Calibration) -> Interval:
    (found,) = run_intervals(price_runs([run], calibrated(made)), made)
    return found


def calibration_of(found: Recalibration) -> Calibration:
    return Calibration(
        source="runs.csv",
        method="",
        date="2026-11-21",
        runs=len(found.measured_s),
        based_on="",
        error_before=found.error_before,
        residual=found.error_after,
        left_out_error=found.error_left_out,
        values={x.name: x.after for x in found.coefficients},
        covariance=tuple(tuple(row[: i + 1]) for i, row in enumerate(found.covariance.tolist())),
    )


def test_runs_as_predicted_move_nothing() -> None:
    runs = some_runs(a_source(), 4)
    shipped = shipped_coefficients()
    found = recalibrate(runs, times(runs, shipped).tolist(), shipped)
    assert max(abs(x.moved) for x in found.coefficients) < 1e-6
    assert found.error_before == pytest.approx(0.0, abs=1e-9)
    assert not found.helped


def test_one_observation_by_hand() -> None:
    """One run that takes 30 % longer, coefficients with independent priors. With spreads s_i and
    slopes j_i, a linear step moves by the share S / (S + r^2) of the miss, S = sum (j_i s_i)^2, and
    coefficient i by s_i^2 j_i / (S + r^2) of it. A miss of m predicted standard deviations, more
    than two, has an r of m / 2 times a row's spread. Slopes change a little on the way."""
    runs = some_runs(a_source(), 1)
    shipped = shipped_coefficients()
    assigned = assign(runs)
    known = Knowledge(
        names=assigned.names,
        covariance=np.diag(np.full(len(assigned.names), 1e-4)),
        between={kind.name: 0.0 for kind in KINDS},
        noise=0.02,
    )
    miss = math.log(1.3)
    found = recalibrate(runs, (1.3 * times(runs, shipped)).tolist(), shipped, known)
    slopes = log_slopes(features(runs), assigned.of(assigned.from_file(shipped)))
    each = np.asarray([slopes[KINDS[k].name][0] for k in assigned.kinds])
    total = float(1e-4 * each @ each)
    row = ROW_SPREAD * miss / math.sqrt(total + ROW_SPREAD**2) / 2.0
    assert row > ROW_SPREAD
    moved = math.log(found.after_s[0] / found.before_s[0])
    assert moved == pytest.approx(miss * total / (total + row**2), rel=0.05)
    level = next(x for x in found.coefficients if x.name.startswith("level."))
    assert math.log1p(level.moved) == pytest.approx(1e-4 * miss / (total + row**2), rel=0.05)


def test_a_slower_cluster_is_learned_from_one_log_and_more_surely_from_four() -> None:
    runs = some_runs(a_source(), 5)
    shipped = shipped_coefficients()
    last = times(runs[4:], shipped)[0]
    errors, widths = [], []
    for count in (1, 4):
        found = recalibrate(runs[:count], (1.3 * times(runs[:count], shipped)).tolist(), shipped)
        made = calibration_of(found)
        after = times(runs[4:], calibrated(made))[0]
        errors.append(abs(after / (1.3 * last) - 1))
        band = interval_of(runs[4], made)
        widths.append(band.high / band.low)
    unknown = step_interval(runs[4], last)
    assert max(errors) < 0.05
    assert widths[1] < widths[0] < unknown.high / unknown.low


def test_logs_do_not_narrow_a_framework_and_device_that_nothing_was_fitted_on() -> None:
    runs = some_runs(a_source(), 4)
    shipped = shipped_coefficients()
    found = recalibrate(runs, (1.02 * times(runs, shipped)).tolist(), shipped)
    known = calibrated_knowledge(calibration_of(found))
    # A file without covariances changes values, not their uncertainty.
    without = replace(calibration_of(found), covariance=())
    assert calibrated_knowledge(without) == calibrated_knowledge(None)
    other = replace(runs[0], id="other", device="max-1550")
    assigned = assign([other])
    power = [name.startswith("power.") for name in assigned.names].index(True)
    assert assigned.names[power] not in known.places
    before = coefficient_spreads(assigned, shipped_knowledge())[power]
    assert coefficient_spreads(assigned, known)[power] == pytest.approx(before, rel=0.02)


def test_a_configuration_measured_twice_does_not_predict_itself() -> None:
    run = some_runs(a_source(), 1)[0]
    twice = [run, replace(run, id="again", defaults=("other words",))]
    shipped = shipped_coefficients()
    found = recalibrate(twice, (1.3 * times(twice, shipped)).tolist(), shipped)
    assert found.configurations == 1
    assert found.left_out_s == found.before_s
    assert not found.helped


def test_no_runs_and_no_times_are_refused() -> None:
    run = some_runs(a_source(), 1)
    for runs, measured in (([], []), (run, [0.0]), (run, [math.nan])):
        with pytest.raises(InputError, match="step time above 0"):
            recalibrate(runs, measured, shipped_coefficients())


def test_a_run_of_another_device_and_framework_stays_as_uncertain() -> None:
    """It shares coefficients with the logged cluster, so it may only become a little more sure."""
    runs = some_runs(a_source(), 3)
    shipped = shipped_coefficients()
    made = calibration_of(recalibrate(runs, times(runs, shipped).tolist(), shipped))
    other = replace(
        runs[0],
        device="mi300x" if runs[0].device != "mi300x" else "h200-sxm",
        stack="torch-fsdp" if runs[0].stack != "torch-fsdp" else "megatron-core",
    )
    before, after = step_interval(other, 2.0), interval_of(other, made)
    assert after.high / after.low > 1 + 0.6 * (before.high / before.low - 1)


def test_a_file_with_an_unknown_kind_names_the_nearest() -> None:
    found = recalibrate(*one_row())
    with pytest.raises(UnknownNameError, match="Did you mean 'matmul'"):
        replace(calibration_of(found), values={"matmuls.*": 1.0}, covariance=())
    with pytest.raises(InputError, match="above 0"):
        replace(calibration_of(found), values={"matmul.*": 0.0}, covariance=())
    with pytest.raises(InputError, match="rows of 1 to 1"):
        replace(calibration_of(found), values={"matmul.*": 0.8}, covariance=((0.1,), (0.1, 0.2)))


def one_row() -> tuple[list[TrainingRun], list[float], CoefficientFile]:
    runs = some_runs(a_source(), 1)
    return runs, times(runs, shipped_coefficients()).tolist(), shipped_coefficients()
