"""Which classes hold the predicted time of a step, and who makes a `Prediction`.

`Prediction` is the only one.
"""

from __future__ import annotations

from tests.architecture.sources import ROOT, shipped

THE_ONE = "simulator/values/prediction.py: Prediction"
MAKERS = {"simulator/step_prediction.py"}


def test_one_class_holds_the_prediction_of_a_step() -> None:
    found = {
        f"{path}: {each.name}"
        for path, source in shipped()
        for each in source.classes
        if each.fields.get("step_time_s", "").startswith("Interval")
    }
    assert found == {THE_ONE}


def test_one_function_makes_predictions() -> None:
    assert {path for path, source in shipped() if "Prediction" in source.calls} == MAKERS


def test_steps_have_two_files_of_fitted_coefficients() -> None:
    """Those of layouts and traced blocks, and the kernels of modules."""
    folder = ROOT / "profiles" / "data" / "calibration"
    found = {path.name for path in folder.glob("*.toml")}
    others = {"goodput.toml", "memory_intervals.toml", "run_evidence.toml"}
    assert found - others == {"runs.toml", "module_steps.toml"}
