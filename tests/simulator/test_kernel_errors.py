"""Errors of many kernels: those of one kind add up, those of unlike kinds are independent."""

from __future__ import annotations

import math

import pytest

from profiles.hardware.catalogue.device import Measurements, ReferencePoint
from simulator.traced.kernel_errors import KindSeconds, joint_share
from simulator.values.prediction import Interval


def watched(spread: float) -> Measurements:
    point = ReferencePoint(kernel="layers", time_s=1.0, spread=spread)
    return Measurements(source="by hand", date="2026-11-23", references=(point,))


def error(kind: str, less_s: float, more_s: float) -> KindSeconds:
    return {kind: Interval(value=10.0, low=10.0 - less_s, high=10.0 + more_s)}


def test_unlike_kinds_are_off_by_the_root_of_their_squares():
    # 3 and 4 s downwards are 5 of 7; 5 and 12 upwards 13 of 17.
    found = joint_share([error("matmul", 3, 5), error("softmax", 4, 12)], watched(0.0))
    assert found == pytest.approx((5 / 7, 13 / 17))


def test_kernels_of_one_kind_are_off_together():
    same = [error("matmul", 1, 2), error("softmax", 4, 12), error("matmul", 2, 3)]
    assert joint_share(same, watched(0.0)) == pytest.approx((5 / 7, 13 / 17))
    assert joint_share([error("matmul", 1, 2)] * 3, watched(0.0)) == pytest.approx((1, 1))


def test_the_speed_of_the_machine_is_common_to_all():
    # 20 s of work at 10 % are 2 s more or less, beside 3 and 4 s: 29 ** 0.5 of 7.
    found = joint_share([error("matmul", 3, 3), error("softmax", 4, 4)], watched(0.1))
    assert found == pytest.approx((math.sqrt(29) / 7,) * 2)


def test_without_reference_kernels_all_errors_go_together():
    errors = [error("matmul", 3, 5), error("softmax", 4, 12)]
    assert joint_share(errors, None) == (1.0, 1.0)
    assert joint_share(errors, Measurements(source="x", date="2026-11-23")) == (1.0, 1.0)
    assert joint_share([], watched(0.1)) == (1.0, 1.0)
