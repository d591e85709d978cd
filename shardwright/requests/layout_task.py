"""`LayoutTask`: a search over layouts as a value that a worker of a sweep receives and solves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.batch.answer_cache import code_and_data_version
from planner.best_first import Progress
from planner.layout.layout_answer import LayoutFile
from planner.layout.layout_plan import plan_layout
from planner.layout.layout_question import LayoutQuestion
from profiles.hardware.catalogue.catalog import device_names


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutTask:
    """A search problem that contains all its inputs.

    explain  include sensitivities
    alone    without runners-up and other additional searches
    version  of the sender's code and data (planner/batch/answer_cache.py)
    """

    question: LayoutQuestion
    explain: bool = False
    alone: bool = False
    version: str


def layout_task(
    question: LayoutQuestion, *, explain: bool = False, alone: bool = False
) -> LayoutTask:
    """The task of finding the best layout with this code and data."""
    return LayoutTask(
        question=question, explain=explain, alone=alone, version=code_and_data_version()
    )


def solve_layout_task(
    task: LayoutTask,
    *,
    clock: Callable[[], float] = lambda: 0.0,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> LayoutFile:
    """The answer without prices; used for single requests and for sweeps."""
    return plan_layout(
        task.question,
        device_names=device_names(),
        clock=clock,
        time_limit_s=time_limit_s,
        progress=progress,
        explain=task.explain,
        alone=task.alone,
    )
