"""What a calibration holds of a workload reaches the search for that workload alone."""

import math
from dataclasses import replace

import pytest

from planner.layout.layout_question import coefficients_of, ground_of
from simulator.training_run.fit.recalibrate import Calibration
from simulator.training_run.fit.workload_shift import workload_of
from simulator.training_run.step.coefficients import shipped_coefficients
from tests.planner.layout.asked import question


def test_a_logged_workload_is_planned_slower():
    asked = question()
    logged = replace(workload_of(ground_of(asked, [])[0]), weight=0.3)
    made = Calibration(
        source="train.log",
        method="by hand",
        date="2026-11-22",
        runs=1,
        based_on="",
        error_before=0.3,
        residual=0.1,
        left_out_error=0.3,
        interval_scale=1.0,
        values={"optimizer.megatron-core": 2.0},
        workloads=(logged,),
    )
    shipped = shipped_coefficients().values
    mine = coefficients_of(replace(asked, calibration=made)).values
    name = "matmul.h100-sxm-80gb"
    assert mine[name] == pytest.approx(math.exp(0.3) * shipped[name])
    assert mine["optimizer.megatron-core"] == pytest.approx(2.0 * math.exp(0.3))
    assert mine["cut_exposed.megatron-core"] == shipped["cut_exposed.megatron-core"]
    for other in (question(precision="fp8"), question(model="llama-3.1-405b", on="64x8xh100-sxm")):
        values = coefficients_of(replace(other, calibration=made)).values
        assert values[name] == pytest.approx(shipped[name], rel=1e-3)
    assert coefficients_of(asked) == shipped_coefficients()
