"""`shardwright profile --from`; `predict --runs` with --explain-run."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from profiles.document import write_text
from profiles.errors import DocumentError, MismatchError, ShardwrightError, UnknownNameError
from profiles.units import format_percent
from shardwright.commands.tables.predict_runs import loaded_calibration
from shardwright.console.output import note, show
from shardwright.reports.brief.brief_terminal import brief_report
from shardwright.reports.brief.explanation import explanation_brief
from shardwright.reports.terminal import table
from shardwright.runs.complete import complete_run
from shardwright.runs.run_table import read_measured, read_runs
from simulator.training_run.explain.explain_run import explain_run
from simulator.training_run.fit.recalibration import (
    CALIBRATION_SCHEMA,
    METHOD,
    Calibration,
    Recalibration,
    recalibrate,
    shipped_hash,
)
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficients import shipped_coefficients

# Measured by bench/one_log.py: whole sources left out of the shipped coefficients, one run of each
# cluster taken as its log.
ONE_CONFIGURATION = (
    "one configuration: nothing is left to check it on. In published clusters that were each "
    "calibrated by one run, the mean error on other runs of its model fell from 14 % to 9 %, on "
    "all other runs from 15 % to 13 %; four in ten became worse on those (docs/logs.md). Add a log "
    "of another layout or size to see whether it helps here"
)
NOTHING_WRITTEN = "nothing is written; name a file to keep it: -o my-cluster.toml"
# Coefficients that changed by less are not printed.
_LEAST_MOVE = 0.01


def calibrate(source: Path, output: Path | None, *, force: bool) -> None:
    """Refit the coefficients on the runs of a table, print the improvement, and write the file.

    Without an output nothing is written. Raises DocumentError for a file that is no table of runs,
    or has no timed run that can be predicted; MismatchError if left-out runs are not predicted
    better than before (unless `force`).
    """
    runs, measured_s = timed_runs(source)
    fit_and_write(runs, measured_s, source.name, output, force=force)


def fit_and_write(
    runs: Sequence[TrainingRun],
    measured_s: Sequence[float],
    source: str,
    output: Path | None,
    *,
    force: bool,
    may_be_one: bool = False,
    given: Mapping[str, float] | None = None,
) -> None:
    """Refit the coefficients on runs, print the improvement, and write the file.

    source  origin of the runs, as written in the file
    may_be_one  accept a single configuration, which leaves no run for checking
    given   known coefficients by name, where the fit starts

    Raises MismatchError if the fit is no improvement (unless `force`).
    """
    shipped = shipped_coefficients()
    known = dict(given or {})
    begin = replace(shipped, values={**shipped.values, **known})
    found = recalibrate(runs, measured_s, begin)
    show(calibration_report(found))
    if output is None:
        note(NOTHING_WRITTEN)
        return
    if may_be_one and found.configurations == 1:
        note(ONE_CONFIGURATION)
    elif not found.helped and not force:
        raise MismatchError(not_better(found, source, output))
    made = Calibration(
        source=source,
        method=METHOD,
        date=datetime.date.today().isoformat(),
        runs=len(runs),
        based_on=shipped_hash(),
        error_before=found.error_before,
        residual=found.error_after,
        left_out_error=found.error_left_out,
        values={x.name: x.after for x in found.coefficients},
        covariance=tuple(tuple(row[: i + 1]) for i, row in enumerate(found.covariance.tolist())),
    )
    write_calibration(output, made)


def write_calibration(output: Path | None, made: Calibration) -> None:
    """Write a calibration if a file is named, and print how to use it."""
    if output is None:
        note(NOTHING_WRITTEN)
        return
    write_text(output, calibration_text(made))
    note(f"written: {output}; use it: shardwright predict --runs RUNS.csv --calibration {output}")


def timed_runs(source: Path) -> tuple[tuple[TrainingRun, ...], tuple[float, ...]]:
    """The predictable runs of a table, and their step times; prints which are left out."""
    if source.suffix == ".json" or _begins_with_brace(source):
        raise DocumentError(
            f"--from {source}: a run of a traced plan (run.json) is not a table of runs; compare "
            f"it with its own plan: `shardwright compare plan.json {source.name}`. For a "
            "calibration write one row per run into a CSV file with the columns of "
            "`shardwright predict --runs` and the measured step_time_s"
        )
    published = read_runs(source)
    times = {row.id: row.step_time_s for row in read_measured(source)}
    runs: list[TrainingRun] = []
    measured: list[float] = []
    for run in published:
        time_s = times.get(run.id)
        if not time_s:
            note(f"{run.id}: left out, its step_time_s is empty or 0")
            continue
        try:
            runs.append(complete_run(run))
        except ShardwrightError as error:
            note(f"{run.id}: left out, {error}")
            continue
        measured.append(time_s)
    if not runs:
        raise DocumentError(
            f"{source}: none of its {len(published)} rows has a step_time_s above 0 and can be "
            "predicted; fill in the measured seconds per optimizer step"
        )
    return tuple(runs), tuple(measured)


def _begins_with_brace(source: Path) -> bool:
    try:
        with source.open("rb") as file:
            return file.read(64).lstrip().startswith(b"{")
    except OSError:
        return False  # the table's reader reports the error


def not_better(found: Recalibration, source: str, output: Path) -> str:
    """Error message: a calibration is not shown to predict left-out runs better."""
    if found.configurations < 2:
        why = (
            f"{source} holds {found.configurations} configuration, so that nothing is left to "
            "check on; add runs that differ (size of machine, layout, model)"
        )
    else:
        why = (
            f"runs that were left out are predicted {format_percent(found.error_left_out)} off, "
            f"against {format_percent(found.error_before)} with the shipped coefficients; add runs "
            "that are like those to be predicted, or take out runs with trouble"
        )
    return f"{output} is not written: {why}, or write it all the same with --force"


def calibration_report(found: Recalibration) -> RenderableType:
    """The changed coefficients and the improvement, as text."""
    moved = [x for x in found.coefficients if abs(x.moved) >= _LEAST_MOVE]
    rows = table("coefficient", ">before", ">after", ">known to*", "meaning")
    for x in sorted(moved, key=lambda x: x.spread_after / x.spread_before):
        rows.add_row(
            x.name,
            f"{x.before:.4g}",
            f"{x.after:.4g}",
            f"±{format_percent(x.spread_after)}",
            x.meaning,
        )
    rows.columns[0].overflow = "fold"
    errors = table("step time, absolute error", ">mean", ">worst")
    for name, predicted in (
        ("shipped coefficients", found.before_s),
        ("refitted, in-sample", found.after_s),
        ("refitted, each configuration left out", found.left_out_s),
    ):
        each = [abs(p / m - 1) for p, m in zip(predicted, found.measured_s, strict=True)]
        errors.add_row(name, format_percent(sum(each) / len(each)), format_percent(max(each)))
    still = len(found.coefficients) - len(moved)
    return Group(
        Text(f"{len(found.measured_s)} runs of {found.configurations} configurations", "bold"),
        Text(""),
        rows if moved else Text("No coefficient moved by 1 %."),
        Text(
            f"{still} more of the same kinds stay where they were, as these runs say little of "
            "them."
        )
        if still
        else Text(""),
        Text("* one standard deviation, of the runs and of what was known before"),
        Text(""),
        errors,
    )


def calibration_text(made: Calibration) -> str:
    """The content of a calibration's file."""
    quoted = made.source.replace("\\", "\\\\").replace('"', '\\"')
    lines = [
        "# Coefficients of described runs, refitted to one cluster's own runs; they take the place",
        "# of the shipped ones: shardwright predict --runs RUNS.csv --calibration THIS. Errors are",
        "# mean absolute relative errors of the step time; meanings of the names are in",
        "# simulator/training_run/step/coefficients.py.",
        f'schema = "{CALIBRATION_SCHEMA}"',
        f'source = "{quoted}"',
        f'method = "{made.method}"',
        f'date = "{made.date}"',
        f"runs = {made.runs}",
        f'based_on = "{made.based_on}"',
        f"error_before = {made.error_before:.4f}",
        f"residual = {made.residual:.4f}",
        f"left_out_error = {made.left_out_error:.4f}",
        "# Lower half of the covariance of the values' logarithms, in their order.",
        "covariance = [",
        *(f"  [{', '.join(f'{each:.6g}' for each in row)}]," for row in made.covariance),
        "]",
        "",
        "[values]",
        *(f'"{name}" = {value:.5g}' for name, value in made.values.items()),
    ]
    return "\n".join(lines) + "\n"


def explain_row(path: Path, run_id: str, calibration_path: Path | None) -> None:
    """Print every number behind one row's prediction.

    Raises UnknownNameError for an id that is not in the table, UnsupportedRunError for a run that
    cannot be predicted.
    """
    runs = {run.id: run for run in read_runs(path, lenient=True)}
    if run_id not in runs:
        raise UnknownNameError("run", run_id, runs, where=f"--explain-run, {path}: id")
    calibration = None if calibration_path is None else loaded_calibration(calibration_path)
    found = explain_run(complete_run(runs[run_id]), calibration)
    show(brief_report(explanation_brief(found)))
