"""What `fit`, `plan` and `predict` give in Python."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType

from planner.layout.layout_answer import LayoutFile
from profiles.document import encode
from shardwright.asking.planned_step import PlannedStep
from shardwright.reports import terminal
from shardwright.reports.brief.plan_table import layout_rows, plan_rows
from shardwright.reports.capacity import Fit, fit_report
from shardwright.reports.layout_report import layout_report
from shardwright.reports.step_report import step_report
from shardwright.results.shown import Shown
from simulator.values.plan_file import PlanFile
from simulator.values.prediction import Prediction


class PlanResult(Shown, PlanFile):
    """A plan of our executor; a row per plan, the chosen one first (columns of `plan --csv`)."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return terminal.plan_report(self)

    def table(self) -> list[dict[str, Any]]:
        return plan_rows(self)


class LayoutResult(Shown, LayoutFile):
    """A framework's layout; a row per layout, the chosen one first (columns of `plan --csv`)."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return layout_report(self)

    def table(self) -> list[dict[str, Any]]:
        return layout_rows((self,), {})


class PredictionResult(Shown, Prediction):
    """What a plan would do; a row per part of the step, in seconds."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return Group(*terminal.prediction_parts(self))

    def table(self) -> list[dict[str, Any]]:
        step_s = self.step_time_s.value
        return [
            {"part": part.name.value, "time_s": part.time_s, "share": part.time_s / step_s}
            for part in self.components
        ]


class StepResult(Shown, PlannedStep):
    """A predicted step of a plan or an imported run; a row per part, in seconds."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return step_report(self)

    def table(self) -> list[dict[str, Any]]:
        step_s = self.step_time_s.value
        return [
            {"part": part.value, "time_s": seconds, "share": seconds / step_s}
            for part, seconds in self.parts.items()
        ]


class FitResult(Shown, Fit):
    """What a model is made of; a row per type of device, with what fits on it."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return fit_report(self)

    def table(self) -> list[dict[str, Any]]:
        return [encode(device) for device in self.devices]
