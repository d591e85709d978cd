"""Step time and duration of a phase of a run on a number of nodes: `step_on`, by the search over
layouts, and `phase_of`.

The step is that of the best layout of the requested frameworks (`shardwright plan --stack`), and
equal for all phases of a model, length and batch. The time of a whole phase comes from
simulator/goodput/time_to_train.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from planner.batch.local_workers import answers_of
from planner.layout.layout_answer import layout_title
from planner.layout.layout_choice import choice_of
from planner.layout.layout_question import LayoutQuestion, LayoutSolver
from profiles.document import decode, encode
from profiles.errors import ShardwrightError
from profiles.hardware.catalogue.cluster import Cluster
from simulator.goodput.reliability_inputs import ReliabilityInputs
from simulator.goodput.time_to_train import time_to_train
from simulator.values.prediction import Interval

_FUNCTION = "shardwright_fleet.phase_price:step_text"
_RUNS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTask:
    """The input of a search for the fastest step on some nodes.

    questions   one for each possible framework
    version     of code and data (planner/batch/answer_cache.py)
    """

    questions: tuple[LayoutQuestion, ...]
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrice:
    """The fastest framework and its layout, as text; seconds and MFU of its step."""

    stack: str
    layout: str
    step_s: Interval
    mfu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAnswer:
    """The price, or None if no layout fits."""

    price: StepPrice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePrice:
    """The step and the duration of a phase.

    days    median and 90 % interval, including failures, restarts and the contingency
    hours   that suffice with the requested probability
    """

    step: StepPrice
    days: Interval
    hours: float


def step_on(task: StepTask) -> StepAnswer:
    """The step of the fastest layout of all frameworks; equal tasks give equal answers."""
    solver = LayoutSolver(clock=lambda: 0.0)
    found = [(question, solver.best(question)) for question in task.questions]
    fitting = [(layout, question) for question, layout in found if layout is not None]
    if not fitting:
        return StepAnswer()
    layout, question = min(fitting, key=lambda pair: pair[0].step_time_s)
    shown = choice_of(layout, None, question.cluster).prediction
    return StepAnswer(
        price=StepPrice(
            stack=question.stack,
            layout=layout_title(layout.run),
            step_s=shown.step_time_s,
            mfu=shown.mfu.value,
        )
    )


def phase_of(
    step: StepPrice,
    steps: int,
    cluster: Cluster,
    parameters: float,
    *,
    reliability: ReliabilityInputs,
    sure: float,
) -> PhasePrice:
    """A phase of `steps` steps; `sure`: the probability (0 to 1) with which `hours` suffice."""
    whole = time_to_train(
        step.step_s,
        steps,
        cluster.num_devices,
        cluster.groups[0].device.name,
        parameters,
        inputs=reliability,
        runs=_RUNS,
    )
    return PhasePrice(step=step, days=whole.days, hours=24.0 * whole.days_with(sure))


def step_text(text: str) -> str:
    """The StepAnswer of a StepTask, both as JSON; {"fault": why} if that fails."""
    try:
        found = step_on(decode(StepTask, json.loads(text), where="the task"))
        return json.dumps(encode(found), allow_nan=False)
    except ShardwrightError as error:
        return json.dumps({"fault": str(error)})


def all_steps(tasks: list[StepTask], workers: int) -> list[StepAnswer]:
    """The answers of all tasks, in order, computed by `workers` processes of this machine.

    Raises InputError if a task or its process fails.
    """
    if workers == 1:
        return [step_on(task) for task in tasks]
    return answers_of(_FUNCTION, tasks, StepAnswer, workers)
