"""`shardwright compare --log`: a prediction next to the log of its run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from profiles.errors import ToleranceError
from shardwright.console.output import print_json, show
from shardwright_frameworks.analysis.log_comparison import compare_logs, log_comparison_data
from shardwright_frameworks.reports.log_report import log_comparison_report
from shardwright_frameworks.requests.imported_step import planned_or_imported


def compare_with_logs(
    plan: Path,
    logs: Sequence[Path],
    *,
    json_output: bool,
    fail_over: float | None,
    on: str = "",
) -> None:
    """Compare the prediction of a plan, or of an imported run on the devices `on`, with its
    training log, and by part with a profile.

    Raises InputError unless there is exactly one training log, ToleranceError if the error of the
    step exceeds `fail_over`.
    """
    compared = compare_logs(planned_or_imported(plan, on), logs)
    if json_output:
        print_json(log_comparison_data(compared))
    else:
        show(log_comparison_report(compared))
    if fail_over is not None and abs(compared.error) > fail_over:
        raise ToleranceError(
            f"the predicted step is {compared.error:+.1%} off the log's steady one, --fail-over "
            f"allows {fail_over:.0%}"
        )
