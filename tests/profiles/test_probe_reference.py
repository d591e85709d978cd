"""Reference kernels: what they give, and how devices are put together."""

from __future__ import annotations

import pytest

from profiles.hardware.catalogue.device import ReferencePoint
from profiles.hardware.probe.probe_reference import KERNELS, combined_references, time_references


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
