"""Which batch near the requested one is proposed, with throughputs given by hand."""

from __future__ import annotations

import pytest

from planner.layout.layout_question import context_of
from planner.layout.layout_relax import nearby_batches
from planner.layout.refined_layout import PricedLayout
from simulator.memory.footprint import footprint
from tests.planner.layout.asked import question

ASKED = question(on="2x8xh100-sxm", batch=100)


def layout(batch, rate):
    """A layout of all devices that trains `rate` sequences a second."""
    run, _ = context_of(question(on="2x8xh100-sxm", batch=batch))
    return PricedLayout(run=run, step_time_s=batch / rate, parts=(), memory=footprint(run))


class Solver:
    """Knows the sequences per second of some batches."""

    def __init__(self, rates):
        self.rates = rates

    def best(self, asked):
        rate = self.rates.get(asked.global_batch)
        return None if rate is None else layout(asked.global_batch, rate)


@pytest.mark.parametrize(
    ("rates", "proposed"),
    [
        # 112 is the rounder, 104 the nearer one. As good within 1 %, the nearer is proposed.
        ({112: 1.10, 104: 1.10}, [104]),
        ({112: 1.10, 104: 1.09}, [104]),
        # 104 is worth less than 99 % of 112, or is no gain of 2 %.
        ({112: 1.10, 104: 1.08}, [112]),
        ({112: 1.025, 104: 1.019}, [112]),
        ({112: 1.01, 104: 1.01}, []),
        ({112: 1.10}, [112]),
        # One on either side.
        ({96: 1.05, 104: 1.10, 112: 1.10}, [96, 104]),
    ],
)
def test_of_batches_nearly_as_good_the_nearest_is_proposed(rates, proposed):
    found = nearby_batches(ASKED, layout(100, 1.0), Solver(rates))
    assert [each.global_batch for each in found] == proposed
    for each in found:
        assert each.tokens_per_s == pytest.approx(rates[each.global_batch] * ASKED.seq_len)


@pytest.mark.parametrize(
    ("batch", "rates", "proposed"),
    [
        # 128 is rounder than 120 = 3 x 40, and nearer.
        (131, {128: 1.1, 120: 1.1}, [128]),
        # The three roundest are tried, the nearer of 140 and 132 = 3 x 44 among them.
        (142, {140: 1.1}, [140]),
        (142, {132: 1.1}, []),
    ],
)
def test_multiples_of_three_times_powers_of_two_on_24_devices(batch, rates, proposed):
    asked = question(on="3x8xh100-sxm", batch=batch)
    found = nearby_batches(asked, layout(batch, 1.0), Solver(rates))
    assert [each.global_batch for each in found] == proposed


def test_a_round_batch_on_all_devices_has_no_proposal():
    assert nearby_batches(question(batch=96), layout(96, 1.0), Solver({104: 2.0})) == ()
