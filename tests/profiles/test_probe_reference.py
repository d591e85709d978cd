"""Reference kernels: what they give, and how devices are put together."""

from __future__ import annotations

import pytest

from profiles.hardware.catalogue.device import ReferencePoint
from profiles.hardware.probe.probe_reference import (
    KERNELS,
    ROUNDS,
    combined_references,
    slowest_over_mean,
    time_references,
    time_rounds,
)


def test_every_kernel_is_timed_once_all_are_ready() -> None:
    met = []
    points = time_references(0.02, barrier=lambda: met.append(True))
    assert tuple(p.kernel for p in points) == KERNELS
    assert len(met) == len(KERNELS)
    assert all(p.time_s > 0 and p.spread >= 0 for p in points)


def test_devices_are_averaged_kernel_by_kernel() -> None:
    a = ReferencePoint(kernel="matmul", time_s=1.0, spread=0.01)
    b = ReferencePoint(kernel="matmul", time_s=2.0, spread=0.03)
    (both,) = combined_references([[a], [b]])
    assert both.time_s == pytest.approx(1.5)
    assert both.spread == 0.03


def test_rounds_begin_together() -> None:
    met: list[bool] = []
    rounds = time_rounds(lambda: met.append(True))
    assert len(rounds) == len(met) == ROUNDS
    assert min(rounds) > 0


def test_the_slowest_of_devices_that_take_turns() -> None:
    """Each is 1.5 in every other round: on the mean both take 1.25, and the round 1.5."""
    rounds = [[1.0, 1.5, 1.0, 1.5], [1.5, 1.0, 1.5, 1.0]]
    assert slowest_over_mean(rounds) == pytest.approx(1.5 / 1.25)
    assert slowest_over_mean(rounds[:1]) == 1.0
