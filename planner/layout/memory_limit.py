"""`MemoryLimit`: the predicted peaks that a layout may have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.layout.layouts import Layouts
from planner.tolerances import DEFAULT_FIT_RISK
from simulator.training_run.fit.memory_interval import memory_margin
from simulator.training_run.run.training_run import TrainingRun


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """What a device has, and the probability of running out of it that a layout may have.

    The predicted peak of a layout, times the ratio that runs like it exceed with that probability
    (memory_interval.memory_margin), is within `capacity_bytes`; so is the peak itself.
    """

    capacity_bytes: float
    risk: float = DEFAULT_FIT_RISK

    def of(self, run: TrainingRun) -> float:
        """Bytes that the predicted peak of a run may be."""
        return self.capacity_bytes / max(1.0, memory_margin(run, self.risk))

    def of_layouts(self, base: TrainingRun, layouts: Layouts) -> NDArray[np.float64]:
        """[layouts] bytes that their predicted peaks may be. What a framework keeps depends on the
        ZeRO stage, and margins on what it keeps (`memory_interval.margin_names`)."""
        keys = np.stack([layouts.zero_stage, layouts.option], axis=1)
        _, first, where = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        limits = [self.of(layouts.run(base, index)) for index in first.tolist()]
        return np.asarray(limits)[where.ravel()]
