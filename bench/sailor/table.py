"""Sailor's measured runs (SOSP 2025), mixed devices included: predicted and measured step time.

Predicts each run from the folder's layer profiles, network measurements and plan, and prints the
measured step next to it. `mean absolute error` is over step times, in percent of the measured ones.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.sailor.files import Run, read_measurements
from bench.sailor.prediction import RunPrediction, predict_run
from bench.sailor.runs import read_runs
from profiles.errors import InputError

SHARED_FOLDER = Path(__file__).parents[3] / "shared" / "yardsticks" / "sailor"


@dataclass(frozen=True, slots=True, kw_only=True)
class SailorRow:
    """A run with its prediction."""

    run: Run
    prediction: RunPrediction

    @property
    def error(self) -> float:
        """Relative error of the predicted step."""
        return self.prediction.step_s / self.run.step_s - 1.0

    @property
    def bare_error(self) -> float:
        """Relative error of sum + (M - 1) max of the profiled stages."""
        return self.prediction.bare_s / self.run.step_s - 1.0


def sailor_rows(folder: Path, *, runs_file: Path | None = None) -> tuple[SailorRow, ...]:
    """The runs of `folder`/runs.json, or of `runs_file` if given, each predicted.

    Raises InputError.
    """
    measurements = read_measurements(folder)
    return tuple(
        SailorRow(run=run, prediction=predict_run(run, measurements))
        for run in read_runs(runs_file or folder / "runs.json")
    )


def mean_absolute_percent(errors: Sequence[float]) -> float:
    """The mean absolute error, in percent."""
    return 100.0 * statistics.fmean(abs(error) for error in errors)


def table(rows: Sequence[SailorRow]) -> str:
    """A line per run, then the mean errors."""
    width = max(len(row.run.name) for row in rows)
    lines = [
        f"{'':{width}}  {'step seconds':>19}  {'error %':>7} {'bare':>6}  {'reduction s':>17}  "
        f"{'state':>5} {'memory':>6}",
        f"{'run':{width}}  {'predicted':>9} {'measured':>9}  {'':>7} {'1F1B':>6}  "
        f"{'predicted':>9} {'red_grads':>9}  {'GB':>5} {'GB':>6}",
    ]
    for row in rows:
        run, found = row.run, row.prediction
        lines.append(
            f"{run.name:{width}}  {found.step_s:9.3f} {run.step_s:9.3f}  {100 * row.error:+7.1f} "
            f"{100 * row.bare_error:+6.1f}  {found.reduction_s:9.3f} {run.reduction_s:9.3f}  "
            f"{found.state_bytes / 1e9:5.2f} {run.memory_bytes / 1e9:6.2f}"
        )
    lines.append("")
    for name, part in (
        ("all runs", rows),
        ("mixed devices", [row for row in rows if row.run.mixed]),
    ):
        if part:
            lines.append(
                f"mean absolute error, {len(part)} {name}: "
                f"{mean_absolute_percent([row.error for row in part]):.1f} %; bare 1F1B "
                f"{mean_absolute_percent([row.bare_error for row in part]):.1f} %"
            )
    lines.append(
        "state: parameters, gradients and Adam of the fullest device. Other memory is not\n"
        "predicted: the profiles have no activation sizes, and the measured memory of two runs\n"
        "of one layout (GPT-NEO N64_D16 and N8_D2) differs by 31 %."
    )
    return "\n".join(lines) + "\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """FOLDER and --runs."""
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=SHARED_FOLDER,
        help="folder with runs.json, layer_profiles.json and the network files "
        "(default: ../shared/yardsticks/sailor)",
    )
    parser.add_argument(
        "--runs", type=Path, help="predict the runs of this file instead of FOLDER/runs.json"
    )


def solve_command(arguments: argparse.Namespace) -> int:
    """Prints the table; 0."""
    if not arguments.folder.is_dir():
        raise InputError(
            f"no folder {arguments.folder}; name the one that holds Sailor's runs.json as FOLDER"
        )
    sys.stdout.write(table(sailor_rows(arguments.folder, runs_file=arguments.runs)))
    return 0
