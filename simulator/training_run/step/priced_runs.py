"""`price_runs`: the steps of described runs, with the features and coefficients behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficients import (
    Array,
    Assigned,
    CoefficientFile,
    assign,
    shipped_coefficients,
)
from simulator.training_run.step.features import Features, features
from simulator.training_run.step.step_time import StepParts, step_parts


@dataclass(frozen=True, slots=True)
class PricedRuns:
    """Runs, their features, and [coefficients] the values that price them."""

    runs: Sequence[TrainingRun]
    x: Features
    assigned: Assigned
    values: Array

    @property
    def c(self) -> dict[str, Array]:
        """Per kind of coefficient the value of every run."""
        return self.assigned.of(self.values)

    @property
    def parts(self) -> StepParts:
        """The parts of each run's step."""
        return step_parts(self.x, self.c)


def price_runs(
    runs: Sequence[TrainingRun],
    coefficients: CoefficientFile | None = None,
    *,
    all_fit: bool = False,
    x: Features | None = None,
) -> PricedRuns:
    """The runs under these coefficients, the shipped ones if None.

    all_fit  skip the memory check of `features`;  x  their features, if known
    """
    assigned = assign(runs)
    values = assigned.from_file(coefficients or shipped_coefficients())
    return PricedRuns(runs, x or features(runs, all_fit=all_fit), assigned, values)
