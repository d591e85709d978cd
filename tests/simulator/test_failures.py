"""Failures of long runs: by hand, beside a simulation, and where nothing is left."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.failures import RESTART_S, delivered, reliability
from simulator.values.prediction import Interval


def test_llama_3_by_hand():
    """16,384 devices fail 419 times in 54 days: every 3.09 h. 14 bytes of 405e9 parameters at
    2 TB/s are 2.84 s, so that a checkpoint every sqrt(2 x 2.84 x 11135) = 251 s loses 1.1 % to
    writing, 1.1 % to work done again and 5.4 % to restarts of ten minutes."""
    found = reliability(405e9, 16384)
    assert found.between_failures_s.value == pytest.approx(54 * 86400 / 419)
    assert found.checkpoint_s.value == pytest.approx(14 * 405e9 / 2e12)
    assert found.checkpoint_every_s == pytest.approx(251, rel=0.01)
    assert found.goodput.value == pytest.approx(1 - 0.0113 - 0.0113 - 0.0539, abs=2e-3)
    # The paper's own: more than 90 % effective training time.
    assert found.goodput.high > 0.9


def test_beside_a_simulation():
    """A month of 4,096 devices with failures drawn at random."""
    found = reliability(70e9, 4096)
    rng = np.random.default_rng(3)
    mean, every, writes = (
        found.between_failures_s.value,
        found.checkpoint_every_s,
        found.checkpoint_s.value,
    )
    total = kept = 0.0
    while total < 400 * mean:
        lasted = rng.exponential(mean)
        kept += math.floor(lasted / (every + writes)) * every
        total += lasted + RESTART_S.value
    assert kept / total == pytest.approx(found.goodput.value, abs=0.01)


@settings(max_examples=50, deadline=None)
@given(st.floats(1e8, 1e13), st.integers(1, 200_000))
def test_more_devices_fail_more_often(parameters, devices):
    one, two = reliability(parameters, devices), reliability(parameters, 2 * devices)
    assert two.between_failures_s.value < one.between_failures_s.value
    assert 0.0 <= one.goodput.low <= one.goodput.value <= one.goodput.high <= 1.0


def test_what_is_lost_is_paid_too():
    cost = Interval(value=2.0, low=1.0, high=3.0)
    share = Interval(value=0.8, low=0.5, high=1.0)
    assert delivered(cost, share) == Interval(value=2.5, low=1.0, high=6.0)
    assert delivered(None, share) is None
    assert delivered(cost, Interval(value=0.1, low=0.0, high=0.2)) is None
