"""Clocks of a shared CPU: what counts as disturbed, and what the median is then made of."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import InputError
from profiles.hardware.probe.cpu_clock import (
    ClockReading,
    Sample,
    between,
    delay_fraction,
    read_clock,
    summarise,
)

times = st.floats(min_value=1e-6, max_value=1e3)
samples = st.builds(
    lambda cpu, delay: Sample(wall_s=cpu + delay, cpu_s=cpu, delay_s=delay),
    times,
    st.floats(min_value=0.0, max_value=10.0),
)


def sample(wall: float, cpu: float, delay: float | None) -> Sample:
    return Sample(wall_s=wall, cpu_s=cpu, delay_s=delay)


def test_difference_of_two_readings() -> None:
    passed = between(ClockReading(1_000, 500, 10), ClockReading(3_001_000, 2_000_500, 1_000_010))
    # 3_000_000 ns of wall time, 2_000_000 ns computing, 1_000_000 ns waiting for a core
    assert passed == sample(pytest.approx(3e-3), pytest.approx(2e-3), pytest.approx(1e-3))
    assert passed.per(2).delay_s == pytest.approx(0.5e-3)


def test_a_thread_that_ended_does_not_give_time_back() -> None:
    assert between(ClockReading(0, 0, 50), ClockReading(10, 10, 20)).delay_s == 0.0


def test_without_schedstat_the_delay_is_unknown() -> None:
    passed = between(ClockReading(0, 0, None), ClockReading(10, 10, 5))
    assert passed.delay_s is None
    assert passed.per(2).delay_s is None


def test_share_of_time_spent_waiting() -> None:
    assert delay_fraction(sample(10.0, 8.0, 1.0)) == pytest.approx(0.1)
    # without the kernel's record a thread that never sleeps waited for 10 - 8 = 2 s
    assert delay_fraction(sample(10.0, 8.0, None)) == 0.0
    assert delay_fraction(sample(10.0, 8.0, None), compute_only=True) == pytest.approx(0.2)
    # a sum over threads can exceed the wall time
    assert delay_fraction(sample(10.0, 30.0, 20.0)) == 1.0
    assert delay_fraction(sample(0.0, 0.0, 0.0)) == 0.0


def test_the_limit_itself_is_still_quiet() -> None:
    assert not summarise([sample(1.0, 1.0, 0.05)], limit=0.05).disturbed
    assert summarise([sample(1.0, 1.0, 0.0501)], limit=0.05).disturbed


def test_median_leaves_out_what_was_disturbed() -> None:
    quiet = [sample(1.0, 1.0, 0.0), sample(1.1, 1.1, 0.0), sample(1.3, 1.3, 0.0)]
    summary = summarise([*quiet, sample(9.0, 5.0, 4.0)])
    assert summary.time_s == pytest.approx(1.1)
    assert (summary.count, summary.discarded, summary.disturbed) == (3, 1, False)
    # 5 % and 95 % quantiles of 1.0, 1.1, 1.3 lie at 1.01 and 1.28: (1.28 - 1.01) / 2 / 1.1
    assert summary.spread == pytest.approx(0.135 / 1.1)


def test_wall_and_cpu_are_different_medians() -> None:
    both = [sample(2.0, 1.0, 0.0), sample(4.0, 3.0, 0.0)]
    assert summarise(both, clock="cpu").time_s == pytest.approx(2.0)
    assert summarise(both, clock="wall").time_s == pytest.approx(3.0)


def test_nothing_undisturbed_uses_the_least_delayed_half_and_says_so() -> None:
    noisy = [sample(2.0, 1.0, 1.0), sample(4.0, 1.2, 2.8), sample(8.0, 1.1, 2.0)]
    summary = summarise(noisy)
    # delays are 50 %, 70 % and 25 % of the wall time: the two least are 1.1 and 1.0 of CPU time
    assert summary.time_s == pytest.approx(1.05)
    assert (summary.count, summary.discarded, summary.disturbed) == (2, 1, True)
    # one quiet sample among five is no median: again the least delayed half, three of five
    assert summarise([*noisy, sample(1.0, 1.0, 0.0), sample(9.0, 1.0, 8.0)]).count == 3


@given(st.lists(samples, min_size=1, max_size=20), st.floats(0.0, 1.0))
def test_every_sample_is_used_or_counted(values: list[Sample], limit: float) -> None:
    summary = summarise(values, limit=limit)
    assert summary.count + summary.discarded == len(values)
    assert summary.count >= 1
    lowest, highest = min(v.cpu_s for v in values), max(v.cpu_s for v in values)
    assert lowest * (1 - 1e-9) <= summary.time_s <= highest * (1 + 1e-9)


@given(st.lists(samples, min_size=1, max_size=20))
def test_a_looser_limit_discards_no_more(values: list[Sample]) -> None:
    strict, loose = summarise(values, limit=0.01), summarise(values, limit=0.5)
    assert strict.disturbed or loose.discarded <= strict.discarded


def test_reading_this_thread() -> None:
    start = read_clock()
    end_ns = time.thread_time_ns() + 5_000_000
    while time.thread_time_ns() < end_ns:
        pass
    passed = between(start, read_clock())
    assert passed.cpu_s >= 0.005
    assert passed.wall_s >= passed.cpu_s * 0.99


def test_every_thread_reads_its_own_clocks() -> None:
    def busy() -> ClockReading:
        end_ns = time.thread_time_ns() + 5_000_000
        while time.thread_time_ns() < end_ns:
            pass
        return read_clock()

    before = read_clock()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(busy).result()
    after = read_clock()
    assert before.wall_ns <= other.wall_ns <= after.wall_ns
    assert other.cpu_ns >= 5_000_000
    assert after.cpu_ns - before.cpu_ns < 5_000_000  # the other thread's time is not this one's
    if before.delay_ns is not None:
        assert after.delay_ns is not None
        assert before.delay_ns <= after.delay_ns


def test_errors() -> None:
    with pytest.raises(InputError, match="no samples"):
        summarise([])
    with pytest.raises(InputError, match="clock 'gpu' is not one of cpu, wall"):
        summarise([sample(1.0, 1.0, 0.0)], clock="gpu")
