"""`judge_speed`: how much slower a configuration is than the best layout of its framework."""

from __future__ import annotations

import time

from planner.axes import Axes
from planner.layout.layout_choice import layout_prediction
from planner.layout.layout_question import LayoutQuestion, LayoutSolver
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.units import format_percent, format_time
from shardwright.runs.predict_runs import PredictedRow
from shardwright_frameworks.changes.flags import change_words
from shardwright_frameworks.changes.ranked_changes import LEAST_GAIN, ranked_changes
from shardwright_frameworks.changes.single_change import SETTINGS, SingleChange
from shardwright_frameworks.imported_run import ImportedRun
from shardwright_frameworks.recipes.finding import Finding, Verdict
from simulator.log_interval import probability_less
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.run.training_run import TrainingRun, setting_of

_SURE = 0.9


def judge_speed(run: ImportedRun, made: PredictedRow, time_limit_s: float) -> tuple[Finding, ...]:
    """One finding if the best layout on the same devices, with the same framework, batch, length
    and precision, is faster with a probability of 90 % or more. Runs with an axis that is not
    searched are not judged.

    Raises InputError if the framework's layouts cannot be searched.
    """
    planned, prediction = made.run, made.prediction
    assert planned is not None
    assert prediction is not None
    searched = load_framework(planned.stack).rules.axes
    beyond = [
        f"{axis} {degree}"
        for axis in ("tp", "pp", "cp", "ep")
        if axis not in searched and (degree := getattr(planned.degrees, axis)) > 1
    ]
    if beyond:
        text = (
            f"speed: layouts of {planned.stack} are searched over {', '.join(searched)}, and this "
            f"one has {', '.join(beyond)}"
        )
        return (Finding(verdict=Verdict.NOT_JUDGED, text=text),)
    nodes = max(1, planned.degrees.num_devices // max(planned.node_devices, 1))
    each = min(planned.node_devices or 1, planned.degrees.num_devices)
    question = LayoutQuestion(
        name=made.id,
        model=planned.model,
        cluster=get_cluster(f"{nodes}x{each}x{planned.device}"),
        stack=planned.stack,
        global_batch=planned.global_batch,
        seq_len=planned.seq_len,
        precision=planned.precision,
        space=Axes(),
    )
    solver = LayoutSolver(clock=time.monotonic, end_s=time.monotonic() + time_limit_s)
    outcome = solver.search(question)
    if not outcome.layouts:
        return ()
    best = outcome.layouts[0].run
    step = layout_prediction(best, question.cluster).step_time_s
    own = prediction.step_time_s
    gain = 1.0 - step.value / own.value
    chance = probability_less(step, own)
    if gain < LEAST_GAIN or chance < _SURE:
        return ()
    proven = "proven best" if outcome.complete else "best layout found"
    text = (
        f"step {format_time(own.value)}, {format_percent(own.value / step.value - 1.0)} slower "
        f"than the {proven}, {format_time(step.value)}; slower with probability "
        f"{format_percent(chance)}"
    )
    return (Finding(verdict=Verdict.SLOWER, text=text, patch=_patch(run, planned, best, gain)),)


def _patch(run: ImportedRun, planned: TrainingRun, best: TrainingRun, gain: float) -> str:
    """The single change with at least half of the gain, otherwise the best layout."""
    for priced in ranked_changes(planned)[:1]:
        if priced.gain >= gain / 2:
            return f"{change_words(run, priced.change)} (saves {format_percent(priced.gain)})"
    changes = [
        SingleChange(setting=name, old=old, new=new, run=best)
        for name in SETTINGS
        if (old := setting_of(planned, name)) != (new := setting_of(best, name))
        and (name != "schedule" or best.degrees.pp > 1)
    ]
    return "; ".join(change_words(run, change) for change in changes)
