"""Explanation of a framework's layout: a new prediction with its terms and sources."""

from __future__ import annotations

from planner.layout.layout_answer import LayoutFile
from profiles.errors import DocumentError
from simulator.training_run.explain.explain_run import RunExplanation, explain_run
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficients import shipped_coefficients


def chosen_run(where: str, answer: LayoutFile) -> TrainingRun:
    """The chosen run; raises DocumentError if nothing fits."""
    if answer.chosen is None:
        raise DocumentError(f"{where} has no layout: its status is {answer.status!r}")
    return answer.chosen.run


def explain_layout(where: str, answer: LayoutFile) -> RunExplanation:
    """The explanation of the chosen layout, predicted with this release's coefficients."""
    return explain_run(chosen_run(where, answer), shipped_coefficients())
