"""Dollars and energy per million tokens, by hand."""

from __future__ import annotations

import pytest

from profiles.hardware.energy.power_draw import power_draw
from simulator.money import kwh_per_million_tokens, usd_per_million_tokens
from simulator.values.prediction import Interval
from tests.simulator.hand_made import cluster, said

RATE = Interval(value=1000.0, low=800.0, high=1250.0)


def test_dollars_by_hand():
    # 8 devices at $3.60 an hour: 0.8 cents a second; 1e6 tokens take 1000 s: $8.
    cost = usd_per_million_tokens(RATE, 8, said(3.60))
    assert cost.value == pytest.approx(8.0)
    assert (cost.low, cost.high) == (pytest.approx(6.4), pytest.approx(10.0))


def test_an_uncertain_price_widens():
    cost = usd_per_million_tokens(RATE, 8, said(3.60, uncertainty=0.1))
    assert (cost.low, cost.high) == (pytest.approx(6.4 * 0.9), pytest.approx(10.0 * 1.1))


def test_no_price_no_dollars():
    assert usd_per_million_tokens(RATE, 8, None) is None


def test_energy_by_hand():
    # 8 devices x 500 W for 1000 s = 4 MJ = 1.111 kWh, a fifth more for hosts, and the site's PUE.
    pue = power_draw().pue
    plain = kwh_per_million_tokens(RATE, cluster())
    assert plain.value == pytest.approx(4e6 / 3.6e6 * pue.value)
    hosted = kwh_per_million_tokens(RATE, cluster(overhead_power=0.2))
    assert hosted.value == pytest.approx(1.2 * 4e6 / 3.6e6 * pue.value)
    width = power_draw().rest_share.uncertainty
    assert plain.low == pytest.approx(4e6 / 3.6e6 * 0.8 * (1 - width) * pue.low)
    assert plain.high == pytest.approx(4e6 / 3.6e6 * 1.25 * (1 + width) * pue.high)
