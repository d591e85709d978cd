"""`shardwright plan --from`: the single changes of an imported run with the largest gains."""

from __future__ import annotations

from pathlib import Path

from shardwright.console.output import print_json, show
from shardwright_frameworks.analysis.ranked_changes import change_data, changes_of
from shardwright_frameworks.commands.predict_imported import prediction_data
from shardwright_frameworks.imported_run import read_imported
from shardwright_frameworks.reports.imported_report import changes_report


def plan_from_import(
    path: Path, *, on: str, precisions: tuple[str, ...], json_output: bool
) -> None:
    """Print the single changes of an imported run with the largest predicted gains.

    precisions  allowed new precisions
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
