"""`solve_text`: the search of one type of device as text in, text out, for worker processes.

planner/many/local_workers.py starts the processes; equal texts give equal texts but for limits
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from planner.many.local_workers import answers_of
from planner.sizing.run_goal import PowerCurve
from planner.sizing.size_question import SizeQuestion
from planner.sizing.sizing_search import SizedDevice, size_device
from profiles.document import decode, encode
from profiles.errors import ShardwrightError
from simulator.training_run.step.coefficients import shipped_coefficients

_FUNCTION = "planner.sizing.size_worker:solve_text"


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeTask:
    """One type of device of a question; `end_s` on the machine's monotonic clock."""

    question: SizeQuestion
    choice: int
    power: PowerCurve
    end_s: float


def solve_text(text: str) -> str:
    """The SizedDevice of a SizeTask, both as JSON; {"fault": why} where that fails."""
    try:
        task = decode(SizeTask, json.loads(text), where="the task")
        found = size_device(
            task.question,
            task.question.choices[task.choice],
            power=task.power,
            coefficients=shipped_coefficients(),
            clock=time.monotonic,
            end_s=task.end_s,
        )
        return json.dumps(encode(found), allow_nan=False)
    except ShardwrightError as error:
        return json.dumps({"fault": str(error)})


def size_on_workers(tasks: list[SizeTask], workers: int) -> tuple[SizedDevice, ...]:
    """Every task's answer in their order, on so many processes of this machine.

    Raises InputError where a task or its process fails.
    """
    return tuple(answers_of(_FUNCTION, tasks, SizedDevice, workers))
