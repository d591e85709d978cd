"""`LayoutSolver`: the best layouts of questions beside the one that is asked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from planner.layout.layout_question import LayoutQuestion, solve_layouts
from planner.layout.refined_layout import PricedLayout
from profiles.errors import InputError
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficients import CoefficientFile


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSolver:
    """Solves one question after the other, as long as there is time.

    end_s  of the clock
    """

    coefficients: CoefficientFile
    clock: Callable[[], float]
    end_s: float = math.inf

    @property
    def has_time(self) -> bool:
        """Whether the end has not come."""
        return self.clock() < self.end_s

    def best(
        self,
        question: LayoutQuestion,
        *,
        capacity: float = 1.0,
        altered: Callable[[TrainingRun], TrainingRun] = lambda run: run,
    ) -> PricedLayout | None:
        """The best layout; None where nothing is legal, nothing fits or no time is left.

        capacity, altered  as in `solve_layouts`
        """
        if not self.has_time:
            return None
        try:
            outcome, _ = solve_layouts(
                question,
                self.coefficients,
                [],
                clock=self.clock,
                capacity=capacity,
                runners_up=0,
                time_limit_s=self.end_s - self.clock(),
                altered=altered,
            )
        except InputError:
            return None
        return outcome.layouts[0] if outcome.layouts else None
