"""Results of the functions of the Python API."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType

from planner.layout.layout_answer import LayoutFile
from planner.sizing.run_outlook import RunOutlook
from profiles.document import encode
from shardwright.analysis.comparison import Comparison, comparison_data
from shardwright.analysis.plan_diff import PlanDiff, plan_diff_data
from shardwright.analysis.size_json import size_json
from shardwright.reports.brief.brief_terminal import brief_report, section_report
from shardwright.reports.brief.comparison_section import comparison_section, diff_section
from shardwright.reports.brief.plan_answers import answer_brief, prediction_brief
from shardwright.reports.brief.plan_table import layout_rows, plan_rows
from shardwright.reports.brief.size_brief import size_brief
from shardwright.reports.brief.size_table import SIZE_COLUMNS, size_rows
from shardwright.reports.capacity import Fit, fit_report
from shardwright.reports.layout_summary import layout_summary
from shardwright.reports.sizing.size_summary import size_summary
from shardwright.requests.planned_step import PlannedStep
from shardwright.requests.sizing.sized import Sized
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
        return brief_report(prediction_brief(self, self.peak_memory_bytes))

    def table(self) -> list[dict[str, Any]]:
        return _parts(self)


def _parts(made: Prediction) -> list[dict[str, Any]]:
    step_s = made.step_time_s.value
    return [
        {"part": part.name.value, "time_s": part.time_s, "share": part.time_s / step_s}
        for part in made.components
    ]


class StepResult(Result, PlannedStep):
    """Predicted step of a plan or an imported run; one row per part, in seconds."""

    __slots__ = ()

    def report(self) -> RenderableType:
        gib = self.peak_memory_gib
        return brief_report(
            prediction_brief(
                self.prediction,
                None if gib is None else gib.scaled(2.0**30),
                title=self.title,
                assumptions=self.assumed,
            )
        )

    def table(self) -> list[dict[str, Any]]:
        return _parts(self.prediction)


class FitResult(Result, Fit):
    """Properties of a model; one row per device type, with its capacity for the model."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return fit_report(self)

    def table(self) -> list[dict[str, Any]]:
        return [encode(device) for device in self.devices]


class ComparisonResult(Result, Comparison):
    """Comparison of a plan with its run; one row per quantity, in its `unit`, errors as shares."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return section_report(comparison_section(self))

    def table(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = comparison_data(self)["rows"]
        return rows


class DiffResult(Result, PlanDiff):
    """Difference of two plans; one row per number of either plan, in its `unit`."""

    __slots__ = ()

    def report(self) -> RenderableType:
        return section_report(diff_section(self))

    def table(self) -> list[dict[str, Any]]:
        data = plan_diff_data(self)
        return [
            {"of": of, **change} for of in ("figures", "parts", "memory") for change in data[of]
        ]


class SizeResult(Result, Sized):
    """Devices to rent for a run; one row per answer, the chosen first (columns of `size --csv`)."""

    __slots__ = ()

    @property
    def best(self) -> RunOutlook | None:
        """The chosen run; None if no listed devices keep the limits."""
        return self.answer.best

    def report(self) -> RenderableType:
        if self.best is not None:
            return size_summary(self)
        return brief_report(size_brief(size_json(self.question, self.answer, self.published)))

    def table(self) -> list[dict[str, Any]]:
        rows = size_rows(size_json(self.question, self.answer, self.published))
        return [{one.name: row.get(one.name) for one in SIZE_COLUMNS} for row in rows]
