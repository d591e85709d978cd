"""Utilisation between measured shapes: exact at points, held outside, never above the best."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import InputError
from profiles.model.graph import AttentionShape
from simulator.traced.utilisation import UtilisationMap, attention_axes

SHAPES = [(64, 64), (64, 1024), (1024, 64), (1024, 1024), (256, 256)]
VALUES = [0.1, 0.3, 0.2, 0.8, 0.5]


def test_exact_at_measured_points():
    table = UtilisationMap(SHAPES, VALUES)
    for shape, value in zip(SHAPES, VALUES, strict=True):
        found = table.at(shape)
        assert math.exp(found.log_value) == pytest.approx(value)
        assert (found.method, found.log_half_width) == ("measured", 0.0)


def test_attention_is_measured_per_batch_times_heads():
    eight = [
        AttentionShape(
            batch=n, heads=8 // n, kv_heads=1, q_len=64, kv_len=128, head_dim=32, causal=True
        )
        for n in (1, 2, 8)
    ]
    assert {attention_axes(shape) for shape in eight} == {(8, 64, 128, 32)}


def test_two_points_by_hand():
    # Two points have no trend but their mean. At log distance 1 from u = 0.2 and 2 from u = 0.8 the
    # weights are 1 and 1 / 4: log u = (log 0.2 + log 0.8 / 4) / (5 / 4).
    table = UtilisationMap([(1.0,), (math.e**3,)], [0.2, 0.8])
    found = table.at((math.e,))
    expected = (math.log(0.2) + math.log(0.8) / 4) / (5 / 4)
    assert found.log_value == pytest.approx(expected)
    assert found.method == "interpolated"
    assert found.log_half_width == table.error == math.log(2)
    assert UtilisationMap([(1.0,), (2.0,), (4.0,)], [0.5, 0.5, 0.5]).error < 1e-9


def test_many_points_in_three_axes_against_a_sum_over_the_nearest():
    """A quadratic trend by least squares, and what it misses at the eight nearest points."""
    rng = np.random.default_rng(5)
    shapes, u = np.exp(rng.uniform(0, 8, (40, 3))), rng.uniform(0.1, 0.9, 40)

    def terms(x):
        return [1, *x, *(x[i] * x[j] for i in range(3) for j in range(i, 3))]

    matrix = np.asarray([terms(x) for x in np.log(shapes)])
    trend = np.linalg.lstsq(matrix, np.log(u), rcond=None)[0]
    missed = np.log(u) - matrix @ trend
    table = UtilisationMap([tuple(x) for x in shapes], list(u))
    for asked in np.exp(rng.uniform(1, 7, (10, 3))):
        away = [math.dist(np.log(asked), x) for x in np.log(shapes)]
        near = sorted(range(40), key=away.__getitem__)[:8]
        miss = np.average(missed[near], weights=[away[i] ** -2 for i in near])
        expected = min(
            max(float(terms(np.log(asked)) @ trend + miss), math.log(min(u))), math.log(max(u))
        )
        assert table.at(tuple(asked)).log_value == pytest.approx(expected)


def test_a_trend_that_is_quadratic_is_found_exactly():
    # log u = -1 + 0.1 log n - 0.01 (log n)^2 on nine points: between them nothing is missed.
    sizes = [2.0**k for k in range(4, 13)]

    def log_u(n):
        return -1 + 0.1 * math.log(n) - 0.01 * math.log(n) ** 2

    table = UtilisationMap([(n,) for n in sizes], [math.exp(log_u(n)) for n in sizes])
    for n in (20.0, 100.0, 3000.0):
        assert table.at((n,)).log_value == pytest.approx(log_u(n), abs=1e-9)
    assert table.error < 1e-9


def test_outside_the_value_is_held_and_the_interval_widens():
    table = UtilisationMap(SHAPES, VALUES)
    edge, near, far = table.at((1024, 1024)), table.at((1200, 1200)), table.at((1400, 1400))
    assert edge.log_value == near.log_value == far.log_value
    assert edge.log_half_width < near.log_half_width < far.log_half_width
    assert near.method == far.method == "assumed"
    assert near.log_half_width == pytest.approx(table.error * (1 + math.log(1200 / 1024)))


@given(st.floats(1.0, 1e6), st.floats(1.0, 1e6))
def test_never_above_the_best_or_below_the_worst_measured(m, n):
    value = math.exp(UtilisationMap(SHAPES, VALUES).at((m, n)).log_value)
    assert min(VALUES) * (1 - 1e-9) <= value <= max(VALUES) * (1 + 1e-9)


def test_points_that_cannot_be():
    with pytest.raises(InputError, match="one value per"):
        UtilisationMap([], [])
    with pytest.raises(InputError, match="above 0"):
        UtilisationMap([(1.0,), (2.0,)], [0.5, 0.0])


def test_a_linear_trend_is_found_where_points_are_too_few_for_a_quadratic():
    # log u = -1 + 0.2 log m - 0.1 log n on twelve points: three terms of two axes, not six.
    sizes = [(2.0**m, 2.0**n) for m in (2, 5, 9) for n in (3, 4, 8, 10)]

    def log_u(m, n):
        return -1 + 0.2 * math.log(m) - 0.1 * math.log(n)

    table = UtilisationMap(sizes, [math.exp(log_u(m, n)) for m, n in sizes])
    assert table.at((100.0, 200.0)).log_value == pytest.approx(log_u(100.0, 200.0), abs=1e-9)
    assert table.error < 1e-9
    few = UtilisationMap(sizes[:8], [math.exp(log_u(m, n)) for m, n in sizes[:8]])
    assert few.error > 0.01


def test_an_interval_ends_a_factor_of_two_beyond_what_was_measured():
    table = UtilisationMap([(1.0,), (8.0,), (64.0,)], [0.1, 0.8, 0.2])
    far = table.at((1e12,))
    assert far.log_value == pytest.approx(math.log(0.2))
    assert math.exp(far.log_value + far.log_half_width) == pytest.approx(2 * 0.8)
