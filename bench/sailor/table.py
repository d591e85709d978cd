"""Sailor's measured runs (SOSP 2025), mixed devices included: step time predicted and measured.

Predicts each run from the folder's layer profiles, network measurements and plan, and prints what
was measured beside it. `mean absolute error` is over step times, in per cent of the measured ones.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.sailor.files import Run, read_measurements
from bench.sailor.host import error_grid, left_out_errors, shipped_host_cost
from bench.sailor.prediction import RunPrediction, predict_run
from bench.sailor.runs import read_runs
from profiles.errors import InputError

BESIDE_THE_REPOSITORY = Path(__file__).parents[3] / "shared" / "yardsticks" / "sailor"


@dataclass(frozen=True, slots=True, kw_only=True)
class SailorRow:
    """A run with its prediction.

    unfitted_step_s  predicted without the host's seconds per message
    left_out_error   relative error with those seconds fitted on the other runs; None where the
                     runs are not the ones of the fit
    """

    run: Run
    prediction: RunPrediction
    unfitted_step_s: float
    left_out_error: float | None

    @property
    def error(self) -> float:
        """Relative error of the predicted step."""
        return self.prediction.step_s / self.run.step_s - 1.0

    @property
    def unfitted_error(self) -> float:
        """Relative error of the step without what was fitted, above 0 where predicted too slow."""
        return self.unfitted_step_s / self.run.step_s - 1.0

    @property
    def bare_error(self) -> float:
        """Relative error of sum + (M - 1) max of the profiled stages."""
        return self.prediction.bare_s / self.run.step_s - 1.0


def sailor_rows(folder: Path, *, runs_file: Path | None = None) -> tuple[SailorRow, ...]:
    """The runs of `folder`/runs.json, each predicted and also left out of the fit.

    runs_file  other runs, measured on the same clusters; predicted only. Raises InputError.
    """
    measurements = read_measurements(folder)
    runs = read_runs(runs_file or folder / "runs.json")
    host_s = shipped_host_cost().seconds_per_message
    left_out: Sequence[float | None] = [None] * len(runs)
    if runs_file is None:
        left_out = left_out_errors(error_grid(runs, measurements), range(len(runs)))
    return tuple(
        SailorRow(
            run=run,
            prediction=predict_run(run, measurements, host_s_per_message=host_s),
            unfitted_step_s=predict_run(run, measurements).step_s,
            left_out_error=error,
        )
        for run, error in zip(runs, left_out, strict=True)
    )


def mean_absolute_percent(errors: Sequence[float]) -> float:
    """The mean of the errors' sizes, in per cent."""
    return 100.0 * statistics.fmean(abs(error) for error in errors)


def table(rows: Sequence[SailorRow]) -> str:
    """A line per run, then the mean errors."""
    width = max(len(row.run.name) for row in rows)
    lines = [
        f"{'':{width}}  {'step seconds':>19}  {'error %':>7} {'left':>6} {'not':>6} {'bare':>6}"
        f"  {'reduction s':>17}  {'state':>5} {'memory':>6}",
        f"{'run':{width}}  {'predicted':>9} {'measured':>9}  {'':>7} {'out':>6} {'fitted':>6} "
        f"{'1F1B':>6}  {'predicted':>9} {'red_grads':>9}  {'GB':>5} {'GB':>6}",
    ]
    for row in rows:
        run, found = row.run, row.prediction
        left = "" if row.left_out_error is None else f"{100 * row.left_out_error:+.1f}"
        lines.append(
            f"{run.name:{width}}  {found.step_s:9.3f} {run.step_s:9.3f}  {100 * row.error:+7.1f} "
            f"{left:>6} {100 * row.unfitted_error:+6.1f} {100 * row.bare_error:+6.1f}  "
            f"{found.reduction_s:9.3f} {run.reduction_s:9.3f}  {found.state_bytes / 1e9:5.2f} "
            f"{run.memory_bytes / 1e9:6.2f}"
        )
    lines.append("")
    parts = (("all runs", rows), ("mixed devices", [row for row in rows if row.run.mixed]))
    for name, part in parts:
        if not part:
            continue
        left_out = [row.left_out_error for row in part if row.left_out_error is not None]
        said = f"; left out {mean_absolute_percent(left_out):.1f} %" if left_out else ""
        lines.append(
            f"mean absolute error, {len(part)} {name}: "
            f"{mean_absolute_percent([row.error for row in part]):.1f} %{said}; not fitted "
            f"{mean_absolute_percent([row.unfitted_error for row in part]):.1f} %; bare 1F1B "
            f"{mean_absolute_percent([row.bare_error for row in part]):.1f} %"
        )
    lines.append(
        "state: parameters, gradients and Adam of the fullest device. What else the memory holds\n"
        "is not predicted: the profiles have no activation sizes, and two runs of one layout\n"
        "(GPT-NEO N64_D16 and N8_D2) differ by 31 % in what was measured."
    )
    return "\n".join(lines) + "\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """FOLDER and --runs."""
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=BESIDE_THE_REPOSITORY,
        help="folder with runs.json, layer_profiles.json and the network files "
        "(default: shared/yardsticks/sailor beside the repository)",
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
