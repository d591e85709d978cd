"""`LayoutGoal`: what a search over layouts makes least, where that is not the step time."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.layout.layout_space import Meshes
from planner.layout.layouts import Counts, Layouts
from simulator.training_run.run.training_run import TrainingRun

Array = NDArray[np.float64]


class LayoutGoal(Protocol):
    """The value of layouts by the nodes that they fill and the seconds of their step.

    With nodes fixed a value never falls where seconds rise, so that the value of a bound of the
    seconds is a bound of the value. It is infinite where a layout is not allowed.
    """

    def values(self, nodes: Counts, seconds: Array) -> Array:
        """[layouts] what is to be least."""
        ...


class StepTime:
    """The seconds of a step themselves."""

    def values(self, nodes: Counts, seconds: Array) -> Array:
        """[layouts] the seconds."""
        return seconds


def nodes_filled(part: Meshes | Layouts) -> Counts:
    """[layouts] nodes of which some device is in use."""
    return np.asarray(-(-(part.tp * part.cp * part.pp * part.dp) // part.node))


def nodes_of_run(run: TrainingRun) -> int:
    """The same of one run."""
    return -(-run.degrees.num_devices // run.node_devices)
