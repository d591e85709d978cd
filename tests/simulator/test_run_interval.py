"""Intervals of step times, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.model.figures.transformer import StateSpace
from simulator.training_run.fit.interval import step_interval, step_intervals, unfitted_s
from simulator.training_run.fit.memory_interval import memory_interval
from simulator.training_run.fit.step_spread import run_spreads
from simulator.training_run.step.coefficients import shipped_coefficients
from simulator.training_run.step.step_time import price_runs
from simulator.values.prediction import Interval
from tests.simulator.described_runs import GPT_RUN, LLAMA_8B, LLAMA_RUN, MIXTRAL


def test_a_step_s_interval_by_hand() -> None:
    """Symmetric in the logarithm, as wide as the shipped quantile of the spread."""
    found = step_interval(LLAMA_RUN, 10.0, 0.05)
    half = math.exp(0.05 * shipped_coefficients().quantile)
    assert (found.low, found.value, found.high) == pytest.approx((10 / half, 10.0, 10 * half))


def test_what_nobody_ran_is_less_certain() -> None:
    """A device without coefficients of its own, experts, a framework of one source."""
    plain = run_spreads([GPT_RUN])[0]
    for run in (
        replace(GPT_RUN, device="trainium2"),
        replace(GPT_RUN, stack="maxtext"),
        replace(LLAMA_RUN, model=MIXTRAL),
    ):
        assert run_spreads([run])[0] > plain
        wide, narrow = step_interval(run, 1.0), step_interval(GPT_RUN, 1.0)
        assert wide.high / wide.low > narrow.high / narrow.low


def test_half_of_an_unmeasured_recurrence_is_uncertain() -> None:
    """Two micro-batches of 32 layers with a gated delta rule, which no fitted run has; Mamba-2 is
    fitted."""
    state = StateSpace(heads=32, head_size=128, state_size=128, rule="delta")
    model = replace(LLAMA_8B, state=state, state_layers=LLAMA_8B.num_layers)
    delta = replace(LLAMA_RUN, stack="megatron-core", zero_stage=1, model=model)
    fitted = replace(delta, model=replace(model, state=replace(state, rule="ssd")))
    priced = price_runs([delta])
    layer_s = float(priced.c["state"][0] * (priced.x.state_forward + priced.x.state_backward)[0])
    assert layer_s > 0
    assert unfitted_s([fitted, delta], [1.0, 1.0]) == [0.0, pytest.approx(2 * 32 * layer_s)]
    (found,) = step_intervals([delta], [10.0], [0.05])
    assert found.high - step_interval(delta, 10.0, 0.05).high == pytest.approx(32 * layer_s)


@pytest.mark.parametrize(("times", "low"), [(0.9, 0.85), (1.1, 1.05), (0.2, 0.1)])
def test_an_unmeasured_option_widens_both_ends_by_half_of_its_effect(
    times: float, low: float
) -> None:
    """But the lower one to half of the time at least."""
    unusual = replace(GPT_RUN, optimizer_offload=True)
    usual_s = float(price_runs([GPT_RUN]).parts.total_s[0])
    time_s = times * usual_s
    (found,) = step_intervals([unusual], [time_s], [0.0])
    assert unfitted_s([GPT_RUN, unusual], [1.0, time_s])[1] == pytest.approx(
        abs(times - 1) * usual_s
    )
    assert found.low == pytest.approx(low * usual_s)
    assert found.high == pytest.approx((times + abs(times - 1) / 2) * usual_s)


@given(st.floats(1e-3, 1e5))
def test_an_interval_holds_its_value(value: float) -> None:
    for run in (GPT_RUN, LLAMA_RUN):
        for interval in (step_interval(run, value), memory_interval(run, value)):
            assert isinstance(interval, Interval)
            assert interval.low <= interval.value <= interval.high


def test_the_shipped_quantile_is_no_narrower_than_a_normal_one() -> None:
    assert 1.645 <= shipped_coefficients().quantile < 3.0
