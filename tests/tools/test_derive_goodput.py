"""Failure rates and the contingency: the shipped file is what the tool derives."""

from __future__ import annotations

import pytest

from simulator.goodput.reliability_inputs import learned
from tools.derive_goodput import ROOT_CAUSES, Ratio, failure_rates, left_out, mean_error, middles


def test_the_shipped_failure_rates():
    """Six clusters: 50.7, 12.9, 45.6, 29.5, 82.1 and 22.4 thousand device-hours, 34.3 thousand in
    the geometric middle; H100's own 50.7 with two of the middle: (50.7 x 34.3^2)^(1/3) = 39.1."""
    hours, spread, miss, devices = failure_rates()
    shipped = learned().failure_rate
    assert hours == pytest.approx(34.3e3, rel=0.01) == pytest.approx(shipped.middle, rel=1e-3)
    assert spread == pytest.approx(shipped.spread, rel=0.01)
    assert 1.5 < miss < 2.5
    assert devices["h100"] == pytest.approx((50.7e3 * 34.3e3**2) ** (1 / 3), rel=0.01)
    assert devices == pytest.approx(dict(shipped.devices), rel=1e-3)
    assert shipped.of("h100-sxm-80gb@500w") == shipped.devices["h100"]
    assert shipped.of("mi300x") == shipped.middle


def test_the_shipped_shares():
    """Table 5 of arXiv 2407.21783: 268 + 49 + 56 + 46 = 419."""
    assert sum(ROOT_CAUSES.values()) == 419
    assert learned().failure_shares.shares["device"] == pytest.approx(268 / 419)


def test_left_out_by_hand():
    """Of 1, 2 and 4 the others' medians are 3, 2.5 and 1.5: errors of 2, 0.25 and 0.625."""
    ratios = {str(x): Ratio(ratio=x, older=False) for x in (1.0, 2.0, 4.0)}
    missed = left_out(ratios)
    assert missed == pytest.approx([1 / 3, 2 / 2.5, 4 / 1.5])
    assert mean_error(missed) == pytest.approx((2 + 0.25 + 0.625) / 3)
    # Two older runs at 2 beside two of the middle, 1: 2^(2 / 4).
    old = {name: Ratio(ratio=2.0, older=True) for name in "ab"}
    assert middles((*old.values(), Ratio(ratio=1.0, older=False))) == pytest.approx((1, 2**0.5))


def test_the_shipped_contingency():
    shipped = learned().contingency
    assert shipped.error < 0.15
    assert shipped.of("h100-sxm-80gb") == shipped.middle >= 1
    assert shipped.of("tpu-v4") == shipped.devices["tpu-v4"] > shipped.middle
