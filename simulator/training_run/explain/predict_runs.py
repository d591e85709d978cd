"""Batch prediction of runs: step time and memory with intervals, and whether each run fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from profiles.errors import ShardwrightError
from profiles.hardware.catalogue.catalog import get_device
from profiles.published.run import PublishedRun
from simulator.memory.footprint import footprint
from simulator.training_run.explain.fit_words import fit_words
from simulator.training_run.explain.run_prediction import run_prediction
from simulator.training_run.fit.interval import step_interval, widened
from simulator.training_run.fit.memory_interval import memory_interval, out_of_memory_probability
from simulator.training_run.fit.step_spread import shipped_knowledge, step_spreads
from simulator.training_run.reading.complete import UnsupportedRunError, complete_run
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficients import CoefficientFile
from simulator.training_run.step.features import features
from simulator.training_run.step.priced_runs import price_runs
from simulator.values.prediction import Interval, Prediction

# Rule of Mamba-2, measured through runs of Nemotron 3 in the fit.
_MEASURED_RULE = "ssd"


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRow:
    """A run with its prediction.

    run       the completed run, None if unsupported;  why_not  the reason
    shown_memory_bytes   peak by the count that the run's framework prints
    memory_counted   required memory by part (fit_words.py);  why_no_memory  reason for no memory
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
    runs: Sequence[PublishedRun], *, altered: Callable[[TrainingRun], TrainingRun] | None = None
) -> tuple[PredictedRow, ...]:
    """A prediction per run, in order, with the shipped coefficients.

    altered  changes a completed run before its prediction
    """
    ready: dict[int, TrainingRun] = {}
    why_not: dict[int, str] = {}
    for place, row in enumerate(runs):
        try:
            completed = complete_run(row)
            ready[place] = completed if altered is None else altered(completed)
        except ShardwrightError as error:
            why_not[place] = str(error)
    try:
        priced = price_runs(tuple(ready.values()))
    except ShardwrightError:
        impossible = _impossible(ready)
        why_not |= impossible
        ready = {place: run for place, run in ready.items() if place not in impossible}
        priced = price_runs(tuple(ready.values()))
    parts, spreads = priced.parts, step_spreads(priced, shipped_knowledge())
    totals = parts.total_s.tolist()
    unfitted = unfitted_s(tuple(ready.values()), totals)
    rows = [PredictedRow(id=run.id, why_not=why_not.get(i, "")) for i, run in enumerate(runs)]
    for index, (place, run) in enumerate(ready.items()):
        step = step_interval(run, totals[index], float(spreads[index]))
        made = PredictedRow(id=run.id, run=run)
        memory = None
        try:
            memory = footprint(run)
        except ShardwrightError as error:
            # No file describes the framework with this sharding, or the schedule cannot run these
            # chunks or micro-batches.
            made = replace(made, why_no_memory=str(error))
        else:
            device = get_device(run.device)
            made = replace(
                made,
                shown_memory_bytes=memory_interval(run, memory.shown_bytes),
                memory_counted=fit_words(memory, device),
                out_of_memory_probability=out_of_memory_probability(
                    run, memory.needed_bytes, device.usable_bytes
                ),
            )
        step = widened(step, unfitted[index])
        prediction = run_prediction(run, step, parts.components(index), memory)
        rows[place] = replace(made, prediction=prediction)
    return tuple(rows)


def unfitted_s(
    runs: Sequence[TrainingRun],
    totals: Sequence[float],
    coefficients: CoefficientFile | None = None,
) -> list[float]:
    """Seconds of each run's step outside the fitted data: the effect of its unusual options, and
    recurrences of an unmeasured kind.

    coefficients  used for the totals, the shipped ones if None
    """
    seconds = [0.0] * len(runs)
    unusual = [place for place, run in enumerate(runs) if run.as_published() != run]
    if unusual:
        published = [runs[place].as_published() for place in unusual]
        usual = price_runs(published, coefficients).parts.total_s
        for place, time_s in zip(unusual, usual.tolist(), strict=True):
            seconds[place] = abs(totals[place] - time_s)
    for place, run in enumerate(runs):
        state = run.model.state
        if state is not None and state.rule != _MEASURED_RULE:
            seconds[place] += _state_s(run, coefficients)
    return seconds


def _state_s(run: TrainingRun, coefficients: CoefficientFile | None) -> float:
    """Seconds per step of the recurrences of the busiest stage's layers."""
    priced = price_runs([run], coefficients)
    x = priced.x
    each = priced.c["state"] * (x.state_forward + x.state_backward)
    return float((x.microbatches * x.layers * each)[0])


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
