"""`shardwright predict --runs`: one prediction per row of a table of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from profiles.csv_table import csv_text
from shardwright.console.output import note, write_or_print
from shardwright.plugins.plugin import Hook, hook
from shardwright.runs.predict_runs import PredictedRow, predict_runs
from shardwright.runs.run import PublishedRun
from shardwright.runs.run_table import read_runs
from simulator.training_run.fit.recalibration import Calibration, read_calibration, shipped_hash
from simulator.training_run.run.training_run import TrainingRun

OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRun:
    """The prediction of the run `id`; None for a number that was not predicted.

    low, high         bounds of the 90 % intervals
    fits              memory_left_gib, device memory minus the memory needed, is not negative
    status            `ok` or `unsupported: why`
    memory_counted    the memory needed and available, part by part
    """

    id: str
    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    peak_memory_gib: float | None = None
    peak_memory_low_gib: float | None = None
    peak_memory_high_gib: float | None = None
    fits: bool | None = None
    status: str = OK
    defaults: str = ""
    memory_left_gib: float | None = None
    out_of_memory_probability: float | None = None
    memory_counted: str = ""


PREDICTED_COLUMNS = tuple(each.name for each in fields(PredictedRun))
"""Columns of the table of predictions, in order."""


_GIB = 2**30


def predict_table(
    path: Path, output: Path, *, traced: bool = False, calibration: Path | None = None
) -> None:
    """Read the runs, predict each, write the table; `-` is stdout.

    traced       build and trace each run's architecture, and predict from the trace
    calibration  file of coefficients instead of the shipped ones

    A row with an unreadable cell gets no prediction but the reason; other rows are predicted.
    """
    made = None if calibration is None else loaded_calibration(calibration)
    runs = read_runs(path, lenient=True)
    found = hook(Hook.PREDICT_TRACED)(runs) if traced else predicted_runs(runs, calibration=made)
    write_or_print(output, csv_text(PREDICTED_COLUMNS, map(row_of, found)))
    supported = sum(prediction.status == OK for prediction in found)
    how = "; the others say why under `status`" if made is None else f" with {calibration}"
    note(f"predicted {supported} of {len(found)} runs{how}")


def loaded_calibration(path: Path) -> Calibration:
    """The calibration in a file, with a note if it was made for other coefficients than ours."""
    made = read_calibration(path)
    if made.based_on != shipped_hash():
        note(
            f"{path} corrects the coefficients of another release; make it again from its runs: "
            f"shardwright profile --from {made.source} -o {path}"
        )
    return made


def predicted_runs(
    runs: Sequence[PublishedRun],
    *,
    altered: Callable[[TrainingRun], TrainingRun] | None = None,
    calibration: Calibration | None = None,
) -> tuple[PredictedRun, ...]:
    """The predictions of runs as the rows of a table.

    altered      changes a completed run before its prediction
    calibration  replaces coefficients
    """
    return tuple(map(_as_row, predict_runs(runs, altered=altered, calibration=calibration)))


def _as_row(made: PredictedRow) -> PredictedRun:
    step, memory = made.step_time_s, made.shown_memory_bytes
    return PredictedRun(
        id=made.id,
        step_time_s=None if step is None else step.value,
        step_time_low_s=None if step is None else step.low,
        step_time_high_s=None if step is None else step.high,
        peak_memory_gib=None if memory is None else memory.value / _GIB,
        peak_memory_low_gib=None if memory is None else memory.low / _GIB,
        peak_memory_high_gib=None if memory is None else memory.high / _GIB,
        fits=made.prediction.fits if made.prediction else None,
        status=f"unsupported: {made.why_not}" if made.why_not else OK,
        defaults="; ".join(_assumed(made)),
        memory_left_gib=None if made.memory_left_bytes is None else made.memory_left_bytes / _GIB,
        out_of_memory_probability=made.out_of_memory_probability,
        memory_counted=made.memory_counted,
    )


def _assumed(made: PredictedRow) -> tuple[str, ...]:
    said = made.run.defaults if made.run is not None else ()
    return (*said, f"no memory: {made.why_no_memory}") if made.why_no_memory else said


def row_of(prediction: PredictedRun) -> list[str]:
    """The cells of a prediction, in the order of PREDICTED_COLUMNS."""
    cells = [prediction.id]
    for column in PREDICTED_COLUMNS[1:7]:
        value = getattr(prediction, column)
        cells.append("" if value is None else f"{value:.6g}")
    cells.append("" if prediction.fits is None else str(int(prediction.fits)))
    cells += [prediction.status, prediction.defaults]
    for left in (prediction.memory_left_gib, prediction.out_of_memory_probability):
        cells.append("" if left is None else f"{left:.4g}")
    return [*cells, prediction.memory_counted]
