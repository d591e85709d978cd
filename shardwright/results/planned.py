"""Results of `fit`, `plan` and `predict` in Python."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType

from planner.layout.layout_answer import LayoutFile
from profiles.document import encode
from shardwright.reports.brief.brief_terminal import brief_report
from shardwright.reports.brief.plan_answers import answer_brief
from shardwright.reports.brief.plan_table import layout_rows, plan_rows
from shardwright.reports.brief.prediction_brief import prediction_brief
from shardwright.reports.capacity import Fit, fit_report
from shardwright.reports.layout_summary import layout_summary
from shardwright.requests.planned_step import PlannedStep
from shardwright.results.result import Result
from simulator.values.plan_file import PlanFile
from simulator.values.prediction import Prediction


class PlanResult(Result, PlanFile):
    """A plan for our executor; one row per plan, the chosen one first (columns of `plan --csv`)."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return brief_report(answer_brief(self), short=True)

    def table(self) -> list[dict[str, Any]]:
        return plan_rows(self)


class LayoutResult(Result, LayoutFile):
    """A framework's layout; one row per layout, the chosen one first (columns of `plan --csv`)."""

    __slots__ = ()

    def report(self) -> RenderableType:
        if self.chosen is None:
            return brief_report(answer_brief(self))
        return layout_summary(self)

    def table(self) -> list[dict[str, Any]]:
        return layout_rows((self,), {})


class PredictionResult(Result, Prediction):
    """Prediction of a plan; one row per part of the step, in seconds."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return brief_report(prediction_brief(self))

    def table(self) -> list[dict[str, Any]]:
        step_s = self.step_time_s.value
        return [
            {"part": part.name.value, "time_s": part.time_s, "share": part.time_s / step_s}
            for part in self.components
        ]


class StepResult(Result, PlannedStep):
    """Predicted step of a plan or an imported run; one row per part, in seconds."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return brief_report(
            prediction_brief(self.prediction, title=self.title, assumptions=self.assumed)
        )

    def table(self) -> list[dict[str, Any]]:
        step_s = self.step_time_s.value
        return [
            {"part": part.value, "time_s": seconds, "share": seconds / step_s}
            for part, seconds in self.parts.items()
        ]


class FitResult(Result, Fit):
    """Properties of a model; one row per device type, with its capacity for the model."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return fit_report(self)

    def table(self) -> list[dict[str, Any]]:
        return [encode(device) for device in self.devices]
