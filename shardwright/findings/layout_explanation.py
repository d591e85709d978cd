"""A framework's layout in depth: predicted anew, with every term, coefficient and source."""

from __future__ import annotations

from planner.layout.layout_answer import LayoutFile
from profiles.errors import DocumentError
from simulator.training_run.explain.explain_run import RunExplanation, explain_run
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficients import shipped_coefficients


def chosen_run(where: str, answer: LayoutFile) -> TrainingRun:
    """The run that was chosen; raises DocumentError where nothing fitted."""
    if answer.chosen is None:
        raise DocumentError(f"{where} holds no layout: its status is {answer.status!r}")
    return answer.chosen.run


def explain_layout(where: str, answer: LayoutFile) -> RunExplanation:
    """The explanation of the chosen layout, predicted with this release's coefficients."""
    return explain_run(chosen_run(where, answer), shipped_coefficients())
