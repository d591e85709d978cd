"""Predicting many described runs at once: step time, memory, whether they fit, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profiles.errors import ShardwrightError
from profiles.hardware.catalogue.catalog import get_device
from profiles.published.run import PublishedRun
from simulator.memory.footprint import footprint
from simulator.training_run.explain.fit_words import fit_words
from simulator.training_run.fit.interval import step_interval, widened
from simulator.training_run.fit.memory_interval import memory_interval, out_of_memory_probability
from simulator.training_run.fit.step_spread import Array, shipped_knowledge, step_spreads
from simulator.training_run.reading.complete import UnsupportedRunError, complete_run
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficients import CoefficientFile, assign, shipped_coefficients
from simulator.training_run.step.features import features
from simulator.training_run.step.step_time import StepParts, step_parts
from simulator.values.prediction import Interval

# Mamba-2's: runs of Nemotron 3 are among those fitted on.
_MEASURED_RULE = "ssd"
_PARTS = tuple(StepParts.__dataclass_fields__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrediction:
    """What is predicted of one described run.

    run       the completed run, or None where it is unsupported
    parts     seconds of each part of the step, by StepParts' names
    fits      the framework runs it, and memory_left_bytes, what the device has beyond the need, is
              not negative
    memory_counted   what the need is made of (fit_words.py)
    why_not   why there is no prediction, or ""; why_no_memory  why there is none of the memory
    """

    id: str
    run: TrainingRun | None = None
    step_time_s: Interval | None = None
    parts: tuple[tuple[str, float], ...] = ()
    peak_memory_bytes: Interval | None = None
    fits: bool | None = None
    memory_left_bytes: float | None = None
    out_of_memory_probability: float | None = None
    memory_counted: str = ""
    why_not: str = ""
    why_no_memory: str = ""


def predict_runs(
    runs: Sequence[PublishedRun], *, altered: Callable[[TrainingRun], TrainingRun] | None = None
) -> tuple[RunPrediction, ...]:
    """A prediction per run, in their order, with the coefficients that the project ships.

    altered  what becomes of a completed run before it is predicted (traced_run.py)
    """
    ready: dict[int, TrainingRun] = {}
    why_not: dict[int, str] = {}
    for place, asked in enumerate(runs):
        try:
            completed = complete_run(asked)
            ready[place] = completed if altered is None else altered(completed)
        except ShardwrightError as error:
            why_not[place] = str(error)
    try:
        parts, spreads = predicted_steps(tuple(ready.values()))
    except ShardwrightError:
        impossible = _impossible(ready)
        why_not |= impossible
        ready = {place: run for place, run in ready.items() if place not in impossible}
        parts, spreads = predicted_steps(tuple(ready.values()))
    totals = parts.total_s.tolist()
    unfitted = unfitted_s(tuple(ready.values()), totals)
    found = [RunPrediction(id=run.id, why_not=why_not.get(i, "")) for i, run in enumerate(runs)]
    for row, (place, run) in enumerate(ready.items()):
        step = step_interval(run, totals[row], float(spreads[row]))
        found[place] = RunPrediction(
            id=run.id,
            run=run,
            step_time_s=widened(step, unfitted[row]),
            parts=tuple((name, float(getattr(parts, name)[row])) for name in _PARTS),
            **_memory(run),
        )
    return tuple(found)


def unfitted_s(
    runs: Sequence[TrainingRun],
    totals: Sequence[float],
    coefficients: CoefficientFile | None = None,
) -> list[float]:
    """Seconds of each run's step that no fitted run had: what its options change, and recurrences
    of a kind of which no run was measured.

    coefficients  that the totals were predicted with, the shipped ones if None
    """
    found = [0.0] * len(runs)
    asked = [place for place, run in enumerate(runs) if run.as_published() != run]
    if asked:
        published = [runs[place].as_published() for place in asked]
        usual = predicted_parts(published, coefficients).total_s
        for place, time_s in zip(asked, usual.tolist(), strict=True):
            found[place] = abs(totals[place] - time_s)
    for place, run in enumerate(runs):
        state = run.model.state
        if state is not None and state.rule != _MEASURED_RULE:
            found[place] += _state_s(run, coefficients or shipped_coefficients())
    return found


def _state_s(run: TrainingRun, coefficients: CoefficientFile) -> float:
    """Seconds per step of the recurrences of the busiest stage's layers."""
    x = features([run])
    assigned = assign([run])
    state = assigned.of(assigned.from_file(coefficients))["state"]
    each = state * (x.state_forward + x.state_backward)
    return float((x.microbatches * x.layers * each)[0])


def _impossible(runs: Mapping[int, TrainingRun]) -> dict[int, str]:
    """place -> why, of the runs whose step cannot be computed (a tp that does not divide the heads,
    a schedule that its chunks or micro-batches do not fit): they cost no other run its own."""
    found = {}
    for place, run in runs.items():
        try:
            features([run])
        except ShardwrightError as error:
            found[place] = str(UnsupportedRunError(run.id, str(error)))
    return found


def _memory(run: TrainingRun) -> dict[str, Any]:
    """The fields of `RunPrediction` about memory: nothing but the reason where no memory file
    describes the run's stack and its sharding, or where the schedule does not take its chunks or
    micro-batches."""
    try:
        memory = footprint(run)
    except ShardwrightError as error:
        return {"why_no_memory": str(error)}
    device = get_device(run.device)
    needed, usable = memory.needed_bytes, device.usable_bytes
    return {
        "peak_memory_bytes": memory_interval(run, memory.shown_bytes),
        "fits": not memory.refused and needed <= usable,
        "memory_left_bytes": usable - needed,
        "memory_counted": fit_words(memory, device),
        "out_of_memory_probability": out_of_memory_probability(run, needed, usable),
    }


def predicted_parts(
    runs: Sequence[TrainingRun], coefficients: CoefficientFile | None = None
) -> StepParts:
    """The parts of each run's step with the coefficients, the shipped ones if None."""
    assigned = assign(runs)
    values = assigned.from_file(coefficients or shipped_coefficients())
    return step_parts(features(runs), assigned.of(values))


def predicted_steps(runs: Sequence[TrainingRun]) -> tuple[StepParts, Array]:
    """The same, and [runs] the spread of each step (step_spread.py)."""
    assigned = assign(runs)
    values = assigned.from_file(shipped_coefficients())
    x = features(runs)
    spreads = step_spreads(runs, x, assigned, values, shipped_knowledge())
    return step_parts(x, assigned.of(values)), spreads
