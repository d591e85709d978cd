"""`LayoutTask`: the search of a framework's layouts as what a worker of a sweep gets and solves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.batch.answer_cache import code_and_data_version
from planner.best_first import Progress
from planner.layout.layout_answer import LayoutFile
from planner.layout.layout_plan import plan_layout
from planner.layout.layout_question import LayoutQuestion
from profiles.hardware.catalogue.catalog import device_names, get_cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutTask:
    """A question with the content that its words name.

    explain  with what would help
    alone    without runners-up, and without what else would be solved beside the question
    version  of the code and data that the asker has (planner/batch/answer_cache.py)
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
    """The answer without prices; one path for a single question and for sweeps."""
    return plan_layout(
        task.question,
        rebuild=get_cluster,
        device_names=device_names(),
        clock=clock,
        time_limit_s=time_limit_s,
        progress=progress,
        explain=task.explain,
        alone=task.alone,
    )
