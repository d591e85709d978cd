"""Predicting many described runs at once: step time, memory, whether they fit, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiles.errors import ShardwrightError
from profiles.published.run import PublishedRun
from simulator.prediction import Interval
from simulator.training_run.coefficients import assign, shipped_coefficients
from simulator.training_run.complete import UnsupportedRunError, complete_run
from simulator.training_run.features import features
from simulator.training_run.footprint import fits, footprint
from simulator.training_run.interval import memory_interval, step_interval
from simulator.training_run.memory_stack import memory_stack_names
from simulator.training_run.step_time import StepParts, step_parts
from simulator.training_run.training_run import TrainingRun


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrediction:
    """What is predicted of one described run.

    run       the completed run, or None where it is unsupported
    parts     seconds of each part of the step, by StepParts' names
    why_not   why there is no prediction, or ""
    """

    id: str
    run: TrainingRun | None = None
    step_time_s: Interval | None = None
    parts: tuple[tuple[str, float], ...] = ()
    peak_memory_bytes: Interval | None = None
    fits: bool | None = None
    why_not: str = ""


def predict_runs(runs: Sequence[PublishedRun]) -> tuple[RunPrediction, ...]:
    """A prediction per run, in their order, with the coefficients that the project ships."""
    completed: list[TrainingRun | None] = []
    why_not: list[str] = []
    for asked in runs:
        try:
            completed.append(complete_run(asked))
            why_not.append("")
        except (UnsupportedRunError, ShardwrightError) as error:
            completed.append(None)
            why_not.append(str(error))
    known = [run for run in completed if run is not None]
    steps: dict[str, tuple[Interval, tuple[tuple[str, float], ...]]] = {}
    if known:
        parts = predicted_parts(known)
        totals = parts.total_s
        for i, ready in enumerate(known):
            split = tuple(
                (name, float(getattr(parts, name)[i])) for name in StepParts.__dataclass_fields__
            )
            steps[ready.id] = (step_interval(ready, float(totals[i])), split)
    found = []
    for asked, run, reason in zip(runs, completed, why_not, strict=True):
        if run is None:
            found.append(RunPrediction(id=asked.id, why_not=reason))
            continue
        interval, split = steps[run.id]
        known_memory = run.stack in memory_stack_names()
        found.append(
            RunPrediction(
                id=asked.id,
                run=run,
                step_time_s=interval,
                parts=split,
                peak_memory_bytes=memory_interval(run, footprint(run).shown_bytes)
                if known_memory
                else None,
                fits=fits(run) if known_memory else None,
            )
        )
    return tuple(found)


def predicted_parts(runs: Sequence[TrainingRun]) -> StepParts:
    """The parts of each run's step with the shipped coefficients."""
    assigned = assign(runs)
    values = assigned.from_file(shipped_coefficients())
    return step_parts(features(runs), assigned.of(values))
