"""Which classes hold the predicted time of a step, and who makes a `Prediction`.

`Prediction` is the only one.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("profiles", "simulator", "planner", "executor", "shardwright")
THE_ONE = "simulator/values/prediction.py: Prediction"
MAKERS = {"simulator/step_prediction.py"}


def _trees() -> list[tuple[str, ast.Module]]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [
        (path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8")))
        for path in paths
    ]


def _holds_a_step(node: ast.ClassDef) -> bool:
    return any(
        isinstance(each, ast.AnnAssign)
        and ast.unparse(each.target) == "step_time_s"
        and ast.unparse(each.annotation).startswith("Interval")
        for each in node.body
    )


def test_one_class_holds_the_prediction_of_a_step() -> None:
    found = {
        f"{path}: {node.name}"
        for path, tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and _holds_a_step(node)
    }
    assert found == {THE_ONE}


def test_one_function_makes_predictions() -> None:
    found = {
        path
        for path, tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Prediction"
    }
    assert found == MAKERS


def test_steps_have_two_files_of_fitted_coefficients() -> None:
    """Those of layouts and traced blocks, and the kernels of modules."""
    folder = ROOT / "profiles" / "data" / "calibration"
    found = {path.name for path in folder.glob("*.toml")}
    others = {"goodput.toml", "memory_intervals.toml", "run_evidence.toml"}
    assert found - others == {"runs.toml", "module_steps.toml"}
