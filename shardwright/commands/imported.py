"""What follows from an imported run: its prediction, and the single changes that bring most."""

from __future__ import annotations

from pathlib import Path

from interop.configs.imported_file import read_imported
from shardwright.asking.imported_row import imported_row, predicted_import
from shardwright.console.output import print_json, show
from shardwright.findings.ranked_changes import change_data, changes_of, prediction_data
from shardwright.reports.frameworks.imported_report import changes_report, prediction_report


def predict_imported(path: Path, *, on: str, json_output: bool) -> None:
    """Prints the prediction of an imported run, on the cluster or device that `on` names."""
    made = predicted_import(imported_row(read_imported(path), path, on))
    if json_output:
        print_json(prediction_data(made))
        return
    show(prediction_report(made))


def plan_from_import(
    path: Path, *, on: str, precisions: tuple[str, ...], json_output: bool
) -> None:
    """Prints the single changes of an imported run that are predicted to bring most.

    precisions  that may be changed to
    """
    run = read_imported(path)
    found = changes_of(run, path, on, precisions=precisions)
    if json_output:
        print_json(
            {
                **prediction_data(found.prediction),
                "changes": [change_data(run, each) for each in found.changes],
            }
        )
        return
    show(changes_report(run, found.prediction, found.changes))
