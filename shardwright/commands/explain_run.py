"""`shardwright predict --runs --explain-run ID`."""

from __future__ import annotations

from pathlib import Path

from profiles.errors import UnknownNameError
from profiles.published.run_table import read_runs
from shardwright.commands.calibrate import loaded_calibration
from shardwright.commands.output import show
from shardwright.reports.run_explanation import explanation_report
from simulator.training_run.explain.explain_run import explain_run
from simulator.training_run.reading.complete import complete_run
from simulator.training_run.step.coefficients import shipped_coefficients


def explain_row(path: Path, run_id: str, calibration_path: Path | None) -> None:
    """Print every number behind one row's prediction.

    Raises UnknownNameError for an id that the table lacks, UnsupportedRunError for a run that
    cannot be predicted.
    """
    runs = {run.id: run for run in read_runs(path, lenient=True)}
    if run_id not in runs:
        raise UnknownNameError("run", run_id, runs, where=f"--explain-run, {path}: id")
    calibration = None if calibration_path is None else loaded_calibration(calibration_path)
    show(
        explanation_report(
            explain_run(complete_run(runs[run_id]), shipped_coefficients(), calibration)
        )
    )
