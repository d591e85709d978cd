"""What a log tells of runs of its own workload, and of others."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import InputError
from profiles.published.run import FIGURES
from profiles.published.run_table import read_runs
from simulator.training_run.fit.recalibrate import recalibrate
from simulator.training_run.fit.workload_shift import (
    PLAIN_SPREAD,
    SIZE_SCALE,
    LoggedWorkload,
    shift_of,
    slowed,
    workload_of,
)
from simulator.training_run.reading.complete import complete_run
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficients import assign, shipped_coefficients
from simulator.training_run.step.features import features
from simulator.training_run.step.step_time import step_parts


def some_runs(count: int = 40) -> list[TrainingRun]:
    return [complete_run(run) for run in read_runs(FIGURES)[:count]]


def a_run() -> TrainingRun:
    return next(r for r in some_runs() if r.model.num_experts == 0 and r.precision == "bf16")


def plain(parameters: float = 8e9, seq_len: float = 4096.0) -> LoggedWorkload:
    return LoggedWorkload(
        cluster="h100, torchtitan",
        experts=False,
        adapters=False,
        low_precision=False,
        parameters=parameters,
        seq_len=seq_len,
    )


def test_steps_take_as_many_times_longer_as_the_coefficients_say() -> None:
    """The kinds that are scaled are all that a step's time is proportional to."""
    runs, file = some_runs(), shipped_coefficients()
    assigned = assign(runs)
    before = step_parts(features(runs), assigned.of(assigned.from_file(file))).total_s
    after = step_parts(features(runs), assigned.of(assigned.from_file(slowed(file, 0.2)))).total_s
    assert after / before == pytest.approx(math.exp(0.2), rel=1e-3)
    assert slowed(file, 0.0) is file


@settings(max_examples=50, deadline=None)
@given(st.floats(1e8, 1e12), st.floats(1e8, 1e12), st.floats(512, 1e6), st.floats(512, 1e6))
def test_likeness_is_one_to_itself_and_fades(a: float, b: float, s: float, t: float) -> None:
    one, other = plain(a, s), plain(b, t)
    assert one.likeness(one) == 1.0
    assert 0.0 <= one.likeness(other) <= 1.0
    assert one.likeness(other) == pytest.approx(other.likeness(one))
    assert one.likeness(plain(a * math.exp(SIZE_SCALE), s)) == pytest.approx(math.exp(-0.5))
    assert one.likeness(replace(other, experts=True)) == 0.0
    assert one.likeness(replace(other, cluster="a100, torchtitan")) == 0.0


def test_one_log_moves_its_workload_and_hardly_another() -> None:
    """By hand where no coefficient moves: of a miss r the workload takes s^2 / (s^2 + 1) of r; the
    coefficients take some of it, so that its own part is less."""
    run, file = a_run(), shipped_coefficients()
    assigned = assign([run])
    predicted = step_parts(features([run]), assigned.of(assigned.from_file(file))).total_s
    found = recalibrate([run], [1.2 * float(predicted[0])], file)
    (workload,) = found.workloads
    assert 0.0 < workload.weight < math.log(1.2) * PLAIN_SPREAD**2 / (PLAIN_SPREAD**2 + 1)
    assert shift_of(run, found.workloads) == pytest.approx(workload.weight)
    assert found.error_after < found.error_before
    experts = replace(run, model=replace(run.model, num_experts=8, top_k=2, expert_size=1024))
    assert shift_of(experts, found.workloads) == 0.0
    assert workload_of(run) == replace(workload, weight=0.0)


def test_a_log_as_predicted_moves_nothing_and_more_logs_move_more() -> None:
    run, file = a_run(), shipped_coefficients()
    assigned = assign([run])
    predicted = float(step_parts(features([run]), assigned.of(assigned.from_file(file))).total_s[0])
    still = recalibrate([run], [predicted], file)
    assert still.workloads[0].weight == pytest.approx(0.0, abs=1e-9)
    again = [run, replace(run, id="again"), replace(run, id="once more")]
    one = recalibrate(again[:1], [1.2 * predicted], file)
    three = recalibrate(again, [1.2 * predicted] * 3, file)
    assert three.error_after < 0.7 * one.error_after


def test_a_workload_without_a_size_is_refused() -> None:
    with pytest.raises(InputError, match="above 0"):
        plain(parameters=0.0)
