"""Intervals: ranks and ends by hand, and that bands cover what they say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.training_run.fit.interval import (
    FEWEST,
    Band,
    IntervalFile,
    StepBands,
    band_of,
    bands,
    may_stall,
    memory_interval,
    shipped_intervals,
    step_interval,
)
from simulator.training_run.fit.step_spread import run_spreads
from simulator.values.prediction import Interval
from tests.simulator.described_runs import GPT_RUN, LLAMA_RUN, MIXTRAL


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


BANDS = StepBands(
    low=-1.0,
    high=2.0,
    ceiling=1e6,
    rows=100,
    sources=9,
    stalled={
        "nanotron, few nodes, stages between nodes": Band(low=0.97, high=6.0, rows=20),
        "nanotron, no stages between nodes": Band(low=0.9, high=1.01, rows=40),
    },
)


def test_a_step_s_interval_by_hand() -> None:
    """A spread of 0.05 far below the ceiling: from exp(-0.05) to exp(0.1)."""
    found = step_interval(LLAMA_RUN, 10.0, 0.05, BANDS)
    assert found.value == 10.0
    assert found.low == pytest.approx(10.0 * math.exp(-0.05))
    assert found.high == pytest.approx(10.0 * math.exp(0.1))
    # Far above a ceiling a spread counts as that, and at it as the root of a half of it.
    low = replace(BANDS, ceiling=0.05)
    assert step_interval(LLAMA_RUN, 10.0, 100.0, low).high == pytest.approx(found.high)
    half = step_interval(LLAMA_RUN, 10.0, 0.05, low)
    assert half.high == pytest.approx(10.0 * math.exp(0.1 / math.sqrt(2)))


@pytest.mark.parametrize(
    ("devices", "pp", "low", "high"),
    [
        (8, 2, math.exp(-0.05), math.exp(0.1)),  # one node: no message to wait for
        (16, 2, math.exp(-0.05), 6.0),  # the farther end of both on either side
        (16, 1, 0.9, math.exp(0.1)),  # no band of few nodes: that of all sizes
        (128, 2, math.exp(-0.05), math.exp(0.1)),  # none of many nodes at all
    ],
)
def test_what_may_stall_reaches_as_far_as_its_like(
    devices: int, pp: int, low: float, high: float
) -> None:
    run = replace(LLAMA_RUN, stack="nanotron", num_devices=devices, pp=pp, dp=devices // pp)
    assert may_stall(run) == (devices > 8)
    found = step_interval(run, 10.0, 0.05, BANDS)
    assert (found.low, found.high) == pytest.approx((10.0 * low, 10.0 * high))


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


@given(st.floats(1e-3, 1e5))
def test_an_interval_holds_its_value(value: float) -> None:
    for run in (GPT_RUN, LLAMA_RUN):
        for interval in (step_interval(run, value), memory_interval(run, value)):
            assert isinstance(interval, Interval)
            assert interval.low <= interval.value <= interval.high


def test_the_shipped_bands() -> None:
    file: IntervalFile = shipped_intervals()
    assert "conformal" in file.method
    assert file.step.low < 0.0 < file.step.high
    assert file.step.rows > file.step.sources > 20
    assert "*" in file.memory
    for table in (file.step.stalled, file.memory):
        for name, band in table.items():
            assert 0.0 < band.low <= band.high, name
            assert band.rows >= FEWEST or name == "*", name
    # Narrower regimes are parts of wider ones.
    for name, band in file.memory.items():
        assert band.rows <= file.memory[name.partition(",")[0]].rows
