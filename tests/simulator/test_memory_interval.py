"""Intervals of peaks: ranks, ends and spreads by hand, and that they cover what they say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence.memory_bands import FEWEST, band_of, bands, source_spread
from simulator.training_run.fit.memory_interval import (
    NEVER_COMPARED,
    Band,
    SourceSpread,
    memory_interval,
    memory_spread,
    shipped_memory_intervals,
)
from tests.simulator.described_runs import GPT_RUN, LLAMA_RUN


def counted(number: int) -> list[float]:
    """1.0, 1.01, 1.02, ... shuffled."""
    return list(np.random.default_rng(1).permutation(1.0 + 0.01 * np.arange(number)))


@pytest.mark.parametrize(
    ("count", "rank"),
    [
        (1, 1),
        (19, 19),  # ceil(0.95 x 20) = 19 of 19
        (20, 20),  # ceil(0.95 x 21) = ceil(19.95)
        (39, 38),  # 0.95 x 40 = 38, and as many from below: the second
        (100, 96),  # ceil(0.95 x 101) = ceil(95.95)
        (999, 950),
    ],
)
def test_ranks_by_hand(count: int, rank: int) -> None:
    found = band_of(counted(count))
    assert found.rows == count
    assert found.high == pytest.approx(1.0 + 0.01 * (rank - 1))
    assert found.low == pytest.approx(1.0 + 0.01 * (count - rank))


@pytest.mark.parametrize("count", [25, 60, 200])
def test_bands_cover_nine_of_ten_new_rows(count: int) -> None:
    """Split conformal: each side's coverage is at least 0.95 on average over calibration sets and
    at most 0.95 + 1 / (n + 1), whatever the residuals' shape."""
    rng = np.random.default_rng(count)

    def residuals(size: int) -> list[float]:
        return list(np.exp(0.1 * rng.standard_t(3, size)))

    fresh = np.asarray(residuals(20000))
    shares = []
    for _ in range(300):
        band = band_of(residuals(count))
        shares.append(float(np.mean((band.low <= fresh) & (fresh <= band.high))))
    assert 0.895 <= np.mean(shares) <= 0.905 + 2 / (count + 1)


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=200))
def test_a_band_is_among_its_ratios(ratios: Sequence[float]) -> None:
    band = band_of(ratios)
    assert min(ratios) <= band.low <= band.high <= max(ratios)
    inside = sum(band.low <= ratio <= band.high for ratio in ratios)
    assert inside >= 0.9 * len(ratios)


def test_a_regime_needs_enough_rows() -> None:
    found = bands(
        {
            "a, one node": [1.0] * (FEWEST - 1),
            "a": [1.0] * FEWEST,
            "*": [1.0, 3.0],
        }
    )
    assert sorted(found) == ["*", "a"]
    assert found["*"] == Band(low=1.0, high=3.0, rows=2)


def test_the_spread_of_sources_by_hand() -> None:
    """Medians of the logarithms 0.3, 0 and -0.3: between = sqrt((0.09 + 0 + 0.09) / 3). Rows about
    their median: 0.1 and -0.1 and 0 of the first, mean square 0.02 / 3; none of the second; the
    third has one row, so no `within`."""
    logs = {"a": [0.2, 0.3, 0.4], "b": [0.0, 0.0], "c": [-0.3]}
    found = source_spread({name: [math.exp(one) for one in rows] for name, rows in logs.items()})
    assert found is not None
    assert found.between == pytest.approx(math.sqrt(0.06))
    assert found.within == pytest.approx(math.sqrt((0.02 / 3 + 0.0) / 2))
    assert (found.rows, found.sources) == (6, 3)


def test_one_source_says_nothing_of_others() -> None:
    assert source_spread({"a": [1.0, 1.1]}) is None


def test_an_interval_by_hand() -> None:
    """Squares add up: sqrt(0.3^2 + 0.4^2) = 0.5, times the normal's 95 % quantile 1.645."""
    spread = SourceSpread(between=0.3, within=0.4, rows=10, sources=3)
    found = memory_interval(LLAMA_RUN, 10.0, spread)
    assert found.high == pytest.approx(10.0 * math.exp(1.644854 * 0.5))
    assert found.low == pytest.approx(10.0 / math.exp(1.644854 * 0.5))


def test_a_framework_that_was_never_compared_is_less_certain() -> None:
    spread = SourceSpread(between=0.1, within=0.0, rows=10, sources=3)
    maxtext = replace(LLAMA_RUN, stack="maxtext", zero_stage=3)
    assert memory_spread(LLAMA_RUN, spread) == pytest.approx(0.1)
    assert memory_spread(maxtext, spread) == pytest.approx(NEVER_COMPARED)


@pytest.mark.parametrize(("between", "within"), [(0.15, 0.05), (0.05, 0.15), (0.1, 0.1)])
def test_intervals_cover_nine_of_ten_rows_of_new_sources(between: float, within: float) -> None:
    """On average over new sources, from twelve sources of twenty rows each."""
    rng = np.random.default_rng(7)

    def sources(count: int) -> np.ndarray:
        shift = rng.normal(0.0, between, (count, 1))
        return np.exp(shift + rng.normal(0.0, within, (count, 20)))

    shares = []
    for _ in range(300):
        known = {str(i): row.tolist() for i, row in enumerate(sources(12))}
        found = memory_interval(GPT_RUN, 1.0, source_spread(known))
        fresh = sources(50)
        shares.append(float(np.mean((found.low <= fresh) & (fresh <= found.high))))
    assert 0.86 <= np.mean(shares) <= 0.92


def test_the_shipped_file() -> None:
    file = shipped_memory_intervals()
    assert 0.0 < file.spread.within < 0.5
    assert 0.0 < file.spread.between < NEVER_COMPARED
    assert file.spread.rows > 1000 > file.spread.sources > 8
    for name, band in file.margins.items():
        assert 0.0 < band.low <= band.high, name
        assert band.rows >= FEWEST or name == "*", name
