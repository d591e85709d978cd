"""`ComparedRun`: a published run with its measurement and its prediction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from profiles.errors import InputError
from shardwright.commands.tables.predict_runs import OK, PredictedRun
from shardwright.runs.run import PublishedRun
from shardwright.runs.run_table import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One run; errors are `predicted / measured - 1`, None if either is missing."""

    run: PublishedRun
    measured: Measured
    predicted: PredictedRun

    @property
    def step_time_error(self) -> float | None:
        """Signed relative error of the step time; positive means predicted too slow."""
        return relative_error(self.predicted.step_time_s, self.measured.step_time_s)

    @property
    def memory_error(self) -> float | None:
        """Signed relative error of the peak memory; positive means predicted too much."""
        return relative_error(self.predicted.peak_memory_gib, self.measured.peak_memory_gib)

    @property
    def step_time_inside(self) -> bool:
        """Whether the measured step time is in the predicted interval; False without one."""
        made = self.predicted
        return is_inside(self.measured.step_time_s, made.step_time_low_s, made.step_time_high_s)

    @property
    def memory_inside(self) -> bool:
        """Whether the measured peak is in the predicted interval; False without one."""
        made = self.predicted
        return is_inside(
            self.measured.peak_memory_gib, made.peak_memory_low_gib, made.peak_memory_high_gib
        )

    @property
    def supported(self) -> bool:
        """Whether the prediction's status is `ok`."""
        return self.predicted.status == OK


def compare_runs(
    runs: Iterable[PublishedRun],
    measured: Iterable[Measured],
    predicted: Iterable[PredictedRun],
) -> tuple[ComparedRun, ...]:
    """The runs with their measurements and predictions, joined by id, in the order of `runs`.

    A run without a prediction counts as not predicted; one without a measurement as not measured.
    Raises InputError if the predictions contain an id twice or an id of no run.
    """
    known = tuple(runs)
    ids = {run.id for run in known}
    truth = {row.id: row for row in measured}
    made: dict[str, PredictedRun] = {}
    for row in predicted:
        if row.id not in ids:
            raise InputError(f"a prediction is for the id {row.id!r}, but no run has it")
        if row.id in made:
            raise InputError(f"the id {row.id!r} is predicted twice; ids must differ")
        made[row.id] = row
    return tuple(
        ComparedRun(
            run=run,
            measured=truth.get(run.id, Measured(id=run.id)),
            predicted=made.get(run.id, PredictedRun(id=run.id, status="missing: not predicted")),
        )
        for run in known
    )


def relative_error(predicted: float | None, measured: float | None) -> float | None:
    """`predicted / measured - 1`; None if either is missing."""
    if predicted is None or measured is None or not measured > 0.0:
        return None
    return predicted / measured - 1.0


def is_inside(value: float | None, low: float | None, high: float | None) -> bool:
    """Whether a measurement is in an interval; False if either is missing."""
    if value is None or low is None or high is None:
        return False
    return low <= value <= high
