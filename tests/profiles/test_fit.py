"""Curves through points: exact where measured, monotone everywhere, honest about the rest."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import InputError
from profiles.hardware.kernels.fit import fit_curve

positive = st.floats(min_value=1e-9, max_value=1e9)
increasing = st.lists(
    st.tuples(st.floats(0.05, 3.0), st.floats(0.01, 3.0)), min_size=1, max_size=12
).map(lambda steps: _cumulated(steps))
any_points = st.lists(st.tuples(positive, positive), min_size=1, max_size=15)


def _cumulated(steps: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    xs, ys, a, b = [], [], 0.0, -10.0
    for dx, dy in steps:
        a, b = a + dx, b + dy
        xs.append(math.exp(a))
        ys.append(math.exp(b))
    return xs, ys


def test_between_two_points_is_the_line_of_latency_and_rate() -> None:
    # (100, 1) and (1100, 4): 3 more for 1000 more, so 1.6 at 300
    value = fit_curve([100, 1100], [1.0, 4.0]).at(300)
    assert value.value == pytest.approx(1.6)
    assert value.method == "interpolated"
    # two points: nothing can be left out, the interval is a factor of two either way
    assert (value.low, value.high) == pytest.approx((0.8, 3.2))


def test_outside_the_points_latency_holds_below_and_the_rate_holds_above() -> None:
    curve = fit_curve([10, 100, 1000], [1.0, 2.0, 4.0])
    assert curve.at(1).value == pytest.approx(1.0)  # the floor
    assert curve.at(4000).value == pytest.approx(16.0)  # 4 x the size of the last: 4 x 4.0
    assert curve.at(4000).method == curve.at(1).method == "extrapolated"


def test_the_interval_is_the_left_out_error() -> None:
    # Without the middle point, x = 340 is predicted as 1 + 3 / 3 = 2, measured is 3: a residual
    # of log(3 / 2). It is the only one, so it is the half-width between points.
    value = fit_curve([10, 340, 1000], [1.0, 3.0, 4.0]).at(50)
    assert value.high / value.value == pytest.approx(1.5)
    assert value.value / value.low == pytest.approx(1.5)


def test_the_interval_widens_with_the_distance_from_the_points() -> None:
    curve = fit_curve([10, 340, 1000], [1.0, 3.0, 4.0])
    widths = [curve.at(x).high / curve.at(x).low for x in (1001, 10_000, 100_000)]
    assert widths == sorted(widths)
    # Last point left out: 3.0 at 340 grows in proportion to 8.8 at 1000, measured 4: log(2.2) over
    # log(2.94) of distance; the first: floor 3.0, measured 1: log(3) over log(34). The larger one
    # counts: at 2940 the half-width is log(1.5) + log(2.2) / log(2.94) * log(2.94).
    wide = curve.at(1000 * 1000 / 340)
    assert wide.high / wide.value == pytest.approx(1.5 * 3.0 * 1000 / 340 / 4.0)


def test_points_of_one_x_are_merged_and_their_difference_is_an_error() -> None:
    value = fit_curve([10, 10, 100], [1.0, 4.0, 8.0]).at(10)
    assert value.value == pytest.approx(2.0)  # sqrt(1 * 4)
    assert value.method == "measured"
    assert (value.low, value.high) == pytest.approx((1.0, 4.0))


def test_a_larger_size_that_was_faster_is_pooled() -> None:
    curve = fit_curve([1, 10, 100], [2.0, 8.0, 2.0])
    # 8 and 2 violate the order; their log mean is sqrt(16) = 4
    assert [curve.at(x).value for x in (1, 10, 100)] == pytest.approx([2.0, 4.0, 4.0])


def test_the_end_that_is_predicted_worse_counts() -> None:
    # The first point left out: 3.0 of 2.9; the last: 3.1 at 340 grows to 9.1 at 1000, measured 4.
    curve = fit_curve([10, 340, 1000], [2.9, 3.1, 4.0])
    worse = math.log(3.1 * 1000 / 340 / 4.0) / math.log(1000 / 340)
    inner = math.log((2.9 + 1.1 * 330 / 990) / 3.1)
    wide = curve.at(1000 * math.e)
    assert math.log(wide.high / wide.value) == pytest.approx(inner + worse)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 9)), min_size=1, max_size=15))
def test_pooling_against_the_formula_of_minima_and_maxima(points: list[tuple[int, int]]) -> None:
    """Weighted isotonic regression (Barlow et al. 1972): the largest over all i up to k of the
    least over all j from k on of the mean of i to j."""
    sizes = sorted({x for x, _ in points})
    groups = [[math.log(y) for x, y in points if x == size] for size in sizes]
    curve = fit_curve([math.exp(x) for x, _ in points], [float(y) for _, y in points])

    def mean(i: int, j: int) -> float:
        return statistics.fmean(itertools.chain(*groups[i : j + 1]))

    for k, x in enumerate(sizes):
        expected = max(min(mean(i, j) for j in range(k, len(groups))) for i in range(k + 1))
        assert curve.at(math.exp(x)).value == pytest.approx(math.exp(expected))


@given(increasing)
def test_exact_at_the_points_of_increasing_data(points: tuple[list[float], list[float]]) -> None:
    curve = fit_curve(*points)
    for x, y in zip(*points, strict=True):
        value = curve.at(x)
        assert value.value == pytest.approx(y, rel=1e-9)
        assert value.method == "measured"


@given(any_points, st.lists(positive, min_size=2, max_size=10))
def test_never_decreases_and_lies_in_its_interval(
    points: list[tuple[float, float]], where: list[float]
) -> None:
    curve = fit_curve([x for x, _ in points], [y for _, y in points])
    values = [curve.at(x) for x in sorted(where)]
    for before, after in itertools.pairwise(values):
        assert after.value >= before.value * (1 - 1e-9)
    assert all(v.low <= v.value <= v.high for v in values)


@given(any_points, st.randoms())
def test_the_order_of_the_points_does_not_matter(
    points: list[tuple[float, float]], random: object
) -> None:
    shuffled = list(points)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    one = fit_curve([x for x, _ in points], [y for _, y in points])
    two = fit_curve([x for x, _ in shuffled], [y for _, y in shuffled])
    assert one == two


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ([], [], "needs points"),
        ([1.0], [1.0, 2.0], "1 x values and 2 y values"),
        ([0.0], [1.0], "above 0, got 0.0"),
        ([1.0], [math.nan], "above 0, got nan"),
    ],
)
def test_points_that_make_no_curve(x: list[float], y: list[float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        fit_curve(x, y)


def test_reading_at_zero_is_an_error() -> None:
    with pytest.raises(InputError, match="got 0"):
        fit_curve([1.0], [1.0]).at(0)
