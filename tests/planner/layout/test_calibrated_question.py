"""A calibration's coefficients reach the search."""

from dataclasses import replace

from planner.layout.layout_question import LayoutSolver
from simulator.training_run.fit.recalibration import Calibration, calibrated
from simulator.training_run.step.coefficients import shipped_coefficients
from tests.planner.layout.asked import question


def test_a_calibration_replaces_shipped_values():
    made = Calibration(
        source="train.log",
        method="by hand",
        date="2026-11-22",
        runs=1,
        based_on="",
        error_before=0.3,
        residual=0.1,
        left_out_error=0.3,
        values={"level.megatron-core": 1.3},
    )
    shipped = shipped_coefficients().values
    mine = calibrated(made).values
    assert mine["level.megatron-core"] == 1.3
    assert {**mine, "level.megatron-core": 0} == {**shipped, "level.megatron-core": 0}
    assert calibrated(None) == shipped_coefficients()
    solver, asked = LayoutSolver(clock=lambda: 0.0), question()
    plain, slower = solver.search(asked), solver.search(replace(asked, calibration=made))
    assert slower.values[0] > plain.values[0]
