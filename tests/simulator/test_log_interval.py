"""Probabilities from 90 % intervals, by hand: z = 1.645 is an end, away / spread in logs."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from simulator.log_interval import is_tie, probability_below, probability_less
from simulator.values.prediction import Interval

END = NormalDist().inv_cdf(0.95)
FIRST = Interval(value=2.0, low=1.0, high=16.0)
SECOND = Interval(value=4.0, low=1.0, high=8.0)


def z(share: float) -> float:
    return NormalDist().cdf(share * END)


def test_a_number_is_below_its_ends_and_its_value() -> None:
    limits = (0.0, 0.25, 1.0, 2.0, 4.0, 16.0)
    expected = [0.0, z(-3), 0.05, 0.5, z(1 / 3), 0.95]
    assert [probability_below(FIRST, limit) for limit in limits] == pytest.approx(expected)


def test_two_numbers_compare_by_the_sides_that_face_each_other() -> None:
    # One doubling apart: 3 above the first and 2 below the second.
    less = probability_less(FIRST, SECOND)
    assert less == pytest.approx(z(1 / math.hypot(3, 2)))
    assert probability_less(SECOND, FIRST) == pytest.approx(1 - less)
    # Three doublings apart: 1 below the first, 1 above the second.
    far = Interval(value=0.25, low=0.01, high=0.5)
    assert probability_less(FIRST, far) == pytest.approx(z(-3 / math.hypot(1, 1)))


def test_sure_numbers() -> None:
    one, two, none = (Interval(value=x, low=x, high=x) for x in (1.0, 2.0, 0.0))
    pairs = ((one, two), (two, one), (one, one), (none, one), (one, none))
    assert [probability_less(a, b) for a, b in pairs] == [1.0, 0.0, 0.5, 1.0, 0.0]
    assert [probability_below(x, 1.0) for x in (one, two, none)] == [1.0, 0.0, 1.0]
    at_most = Interval(value=2.0, low=1.0, high=2.0)
    assert [probability_below(at_most, x) for x in (1.0, 2.0)] == pytest.approx([0.05, 1.0])


def test_a_tie_is_near_one_half() -> None:
    ties = [is_tie(p) for p in (0.39, 0.4, 0.5, 0.6, 0.61, None)]
    assert ties == [False, True, True, True, False, False]
