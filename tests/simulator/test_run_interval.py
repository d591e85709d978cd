"""Intervals: ranks by hand, which regime a run falls in, and that bands cover what they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.training_run.fit.interval import (
    FEWEST,
    UNSEEN_STRANGE,
    Band,
    IntervalFile,
    band_of,
    bands,
    group_band,
    memory_interval,
    regimes_of,
    shipped_intervals,
    step_band,
    step_interval,
    step_regimes_of,
    unseen_regime,
)
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
            "*": [1.0],
            "unseen": [1.0, 3.0],
        }
    )
    assert sorted(found) == ["*", "a", "unseen"]
    assert found["unseen"] == Band(low=1.0, high=3.0, rows=2)


def test_a_band_of_groups_by_hand() -> None:
    """19 groups and the new one: a tail of 0.05 of 20 is one group, half of it the new one's. Of
    the hundred of "a" each weighs 0.01, so that fifty lie outside; "b" weighs 1 and may not."""
    groups = {"a": [0.5 + 0.001 * i for i in range(100)], "b": [2.0]}
    found = group_band(groups | {f"c{i}": [1.0] * (i + 1) for i in range(17)})
    assert found.low == pytest.approx(0.5 + 0.001 * 50)
    assert found.high == 2.0
    assert found.rows == 101 + 17 * 18 // 2


@given(st.lists(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=30), min_size=1, max_size=12))
def test_a_band_of_groups_holds_nine_tenths_of_their_mean(groups: list[list[float]]) -> None:
    band = group_band({str(i): found for i, found in enumerate(groups)})
    shares = [np.mean([band.low <= x <= band.high for x in found]) for found in groups]
    assert np.mean(shares) >= 0.9 - 1e-9


@pytest.mark.parametrize(
    ("devices", "size"),
    [(4, "one node"), (8, "one node"), (16, "few nodes"), (64, "few nodes"), (72, "many nodes")],
)
def test_regimes_by_size(devices: int, size: str) -> None:
    run = replace(LLAMA_RUN, num_devices=devices, dp=devices)
    device = LLAMA_RUN.device
    assert regimes_of(run) == (
        f"torch-fsdp, {device}, {size}",
        f"torch-fsdp, {device}",
        f"torch-fsdp, {size}",
        "torch-fsdp",
        "h100-sxm-80gb",
        "*",
    )


def test_a_known_regime_s_band_is_held_and_lies_near_that_of_sources_left_out() -> None:
    """By the shipped bands: a software of which there are few rows on the device takes that of
    sources left out, others at least their regime's."""
    step = shipped_intervals().step
    for stack in ("megatron-2021", "torch-fsdp", "nanotron", "maxtext"):
        for devices in (8, 16, 128):
            run = replace(LLAMA_RUN, stack=stack, num_devices=devices, dp=devices)
            unseen = step["unseen"]
            found = step_interval(run, 10.0)
            if f"{run.stack}, {run.device}" not in step:
                assert found.low == pytest.approx(10.0 * unseen.low)
                assert found.high == pytest.approx(10.0 * unseen.high)
                continue
            band = next(step[name] for name in step_regimes_of(run) if name in step)
            assert found.low <= 10.0 * min(1.0, band.low) * (1 + 1e-9)
            assert found.high >= 10.0 * max(1.0, band.high) * (1 - 1e-9)
            assert 10.0 * min(band.low, unseen.low) <= found.low * (1 + 1e-9)
            assert found.high <= 10.0 * max(band.high, unseen.high) * (1 + 1e-9)


def test_experts_adapters_and_eight_bits_are_stranger_than_plain_runs() -> None:
    assert unseen_regime(LLAMA_RUN) == "unseen"
    for strange in (
        replace(LLAMA_RUN, model=MIXTRAL),
        replace(LLAMA_RUN, lora=True),
        replace(LLAMA_RUN, precision="fp8"),
    ):
        assert unseen_regime(strange) == UNSEEN_STRANGE
        shipped = [step_band(run, shipped_intervals().step) for run in (strange, LLAMA_RUN)]
        assert shipped[0].low <= shipped[1].low
        assert shipped[0].high >= shipped[1].high


def test_known_software_on_a_known_device_is_strange_where_the_two_never_met() -> None:
    band = Band(low=0.95, high=1.05, rows=20)
    wide = Band(low=0.5, high=2.0, rows=20)
    known = {
        "torch-fsdp, a100-sxm-80gb": band,
        "torch-fsdp": band,
        "h100-sxm-80gb": band,
        "*": band,
        "unseen": wide,
    }
    found = step_interval(LLAMA_RUN, 10.0, known)
    assert (found.low, found.high) == (5.0, 20.0)
    found = step_interval(replace(LLAMA_RUN, device="a100-sxm-80gb"), 10.0, known)
    # A fifth of the way from the wide band to the narrow one, in logarithms.
    assert found.low == pytest.approx(10.0 * 0.95**0.2 * 0.5**0.8)
    assert found.high == pytest.approx(10.0 * 1.05**0.2 * 2.0**0.8)


def test_deepspeed_s_megatron_has_bands_of_its_own() -> None:
    assert regimes_of(replace(GPT_RUN, stack="megatron-deepspeed"))[3] == "megatron-deepspeed"
    assert regimes_of(GPT_RUN)[3] == "megatron-2021"


def test_a_device_without_coefficients_gets_the_band_of_sources_left_out() -> None:
    unseen = shipped_intervals().step["unseen"]
    found = step_interval(replace(LLAMA_RUN, device="trainium2"), 10.0)
    assert (found.low, found.high) == pytest.approx((10.0 * unseen.low, 10.0 * unseen.high))
    seen = step_interval(GPT_RUN, 10.0)
    assert found.high / found.low > seen.high / seen.low


@given(st.floats(1e-3, 1e5))
def test_an_interval_holds_its_value(value: float) -> None:
    for run in (GPT_RUN, LLAMA_RUN):
        for interval in (step_interval(run, value), memory_interval(run, value)):
            assert isinstance(interval, Interval)
            assert interval.low <= interval.value <= interval.high


def test_the_shipped_bands() -> None:
    file: IntervalFile = shipped_intervals()
    assert {"*", "unseen"} <= set(file.step)
    assert "*" in file.memory
    assert "conformal" in file.method
    for table in (file.step, file.memory):
        for name, band in table.items():
            assert 0.0 < band.low <= band.high, name
            assert band.rows >= FEWEST or name in ("*", "unseen"), name
        # Narrower regimes are parts of wider ones.
        for name, band in table.items():
            stack = name.partition(",")[0]
            assert band.rows <= table[stack].rows
