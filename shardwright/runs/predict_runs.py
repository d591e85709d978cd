"""Batch prediction of runs: step time and memory with intervals, and whether each run fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from profiles.errors import ShardwrightError
from profiles.hardware.catalogue.catalog import get_device
from shardwright.runs.complete import UnsupportedRunError, complete_run
from shardwright.runs.run import PublishedRun
from simulator.memory.footprint import footprint
from simulator.training_run.explain.explain_memory import fit_words
from simulator.training_run.explain.run_prediction import run_prediction
from simulator.training_run.fit.interval import run_intervals
from simulator.training_run.fit.memory_interval import memory_interval, out_of_memory_probability
from simulator.training_run.fit.recalibration import Calibration, calibrated
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.features import features
from simulator.training_run.step.step_time import price_runs
from simulator.values.prediction import Component, Interval, Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRow:
    """A run with its prediction.

    run       the completed run, None if unsupported
    why_not   the reason why it is unsupported
    shown_memory_bytes   peak as the run's framework reports it
    memory_counted   required memory by part (`fit_words`)
    why_no_memory    reason for having no memory
    """

    id: str
    run: TrainingRun | None = None
    prediction: Prediction | None = None
    shown_memory_bytes: Interval | None = None
    out_of_memory_probability: float | None = None
    memory_counted: str = ""
    why_not: str = ""
    why_no_memory: str = ""

    @property
    def step_time_s(self) -> Interval | None:
        return None if self.prediction is None else self.prediction.step_time_s

    @property
    def memory_left_bytes(self) -> float | None:
        """Free memory of the fullest device, negative for a shortfall; None if not predicted."""
        if self.prediction is None or not self.prediction.ranks:
            return None
        fullest = self.prediction.fullest
        return fullest.capacity_bytes - fullest.limiting_bytes


def predict_runs(
    runs: Sequence[PublishedRun],
    *,
    altered: Callable[[TrainingRun], TrainingRun] | None = None,
    calibration: Calibration | None = None,
) -> tuple[PredictedRow, ...]:
    """A prediction per run, in order, with the shipped coefficients.

    altered      changes a completed run before its prediction
    calibration  replaces coefficients; memory does not depend on them
    """
    coefficients = calibrated(calibration)
    ready: dict[int, TrainingRun] = {}
    why_not: dict[int, str] = {}
    for place, row in enumerate(runs):
        try:
            completed = complete_run(row)
            ready[place] = completed if altered is None else altered(completed)
        except ShardwrightError as error:
            why_not[place] = str(error)
    try:
        priced = price_runs(tuple(ready.values()), coefficients)
    except ShardwrightError:
        impossible = _impossible(ready)
        why_not |= impossible
        ready = {place: run for place, run in ready.items() if place not in impossible}
        priced = price_runs(tuple(ready.values()), coefficients)
    parts, steps = priced.parts, run_intervals(priced, calibration)
    rows = [PredictedRow(id=run.id, why_not=why_not.get(i, "")) for i, run in enumerate(runs)]
    for index, (place, run) in enumerate(ready.items()):
        rows[place] = _predicted(run, steps[index], parts.components(index))
    return tuple(rows)


def _predicted(run: TrainingRun, step: Interval, parts: tuple[Component, ...]) -> PredictedRow:
    try:
        memory = footprint(run)
    except ShardwrightError as error:
        # No file describes the framework with this sharding, or the schedule cannot run these
        # chunks or micro-batches.
        prediction = run_prediction(run, step, parts, None)
        return PredictedRow(id=run.id, run=run, prediction=prediction, why_no_memory=str(error))
    device = get_device(run.device)
    needed, usable = memory.needed_bytes, device.usable_bytes
    return PredictedRow(
        id=run.id,
        run=run,
        prediction=run_prediction(run, step, parts, memory),
        shown_memory_bytes=memory_interval(run, memory.shown_bytes),
        out_of_memory_probability=out_of_memory_probability(run, needed, usable),
        memory_counted=fit_words(memory, device),
    )


def _impossible(runs: Mapping[int, TrainingRun]) -> dict[int, str]:
    """Index -> reason for runs whose step cannot be computed: tp does not divide the heads, or the
    schedule cannot run the chunks or micro-batches. The other runs are still predicted."""
    reasons = {}
    for place, run in runs.items():
        try:
            features([run])
        except ShardwrightError as error:
            reasons[place] = str(UnsupportedRunError(run.id, str(error)))
    return reasons
