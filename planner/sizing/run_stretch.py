"""Wall time of a long run divided by its steady step time, by number of nodes, in closed form: for
ranking only.

Each simulated cluster gives the value of goodput/reliability.py, times a step within its 90 %
interval. The result is the median over clusters, and the quantile of the accepted probability for a
limit. Numbers of nodes are a third of an octave apart, with linear interpolation, and with the
draws of `time_to_train` except for a run's own failures. The answer and its runners-up are
simulated (run_outlook.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.layout.layout_search import Array
from simulator.goodput.clusters import draw_clusters, two_sided
from simulator.goodput.reliability import expected
from simulator.goodput.reliability_inputs import ReliabilityInputs
from simulator.values.prediction import Interval

_PER_OCTAVE = 3
_DRAWS = 2000
_SEED, _PRICE_SEED = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunStretch:
    """[nodes] factors on steady steps, from 0 nodes on.

    middle    for the median of the whole time
    deadline  for the quantile of the time at the accepted probability
    budget    the same for dollars: includes the spread of the price
    """

    middle: Array
    deadline: Array
    budget: Array

    def times(self, factor: float) -> RunStretch:
        """The factors of a run that takes `factor` times as long."""
        return RunStretch(
            middle=self.middle * factor,
            deadline=self.deadline * factor,
            budget=self.budget * factor,
        )


def run_stretch(
    parameters: float,
    device: str,
    node_devices: int,
    most_nodes: int,
    inputs: ReliabilityInputs,
    *,
    step_bands: Callable[[Sequence[int]], Sequence[Interval]],
    price: Interval | None,
    confidence: float,
) -> RunStretch:
    """Factors for a model with this many parameters on up to this many nodes.

    step_bands  measured over predicted step time on each number of nodes
    price       of a device-hour
    confidence  probability (0 to 1) with which a limit must be kept
    """
    octaves = np.log2(max(2, most_nodes))
    spaced = np.geomspace(1, most_nodes, 1 + int(_PER_OCTAVE * octaves)).round()
    counts = np.unique(spaced.astype(int)).tolist()
    dearer = _dearer(price)
    found = []
    for nodes, band in zip(counts, step_bands(counts), strict=True):
        lost, normal = _drawn(parameters, nodes * node_devices, device, inputs)
        time = lost * two_sided(band.low, band.value, band.high, normal)
        median, spent = float(np.median(time)), time * dearer
        # Of dollars the middle is that of the time: device-hours at the price that is shown.
        unsure = float(np.quantile(spent, confidence) / np.median(spent))
        found.append((median, float(np.quantile(time, confidence)), median * unsure))
    at = np.log(np.arange(1, most_nodes + 1))
    middle, deadline, budget = (
        np.concatenate([np.ones(1), np.interp(at, np.log(counts), np.asarray(each))])
        for each in zip(*found, strict=True)
    )
    return RunStretch(middle=middle, deadline=deadline, budget=budget)


def _dearer(price: Interval | None) -> Array:
    """[draws] the price of a device-hour over its median."""
    normal = np.random.default_rng(_PRICE_SEED).standard_normal(_DRAWS)
    if price is None or price.value <= 0:
        return np.ones(_DRAWS)
    return two_sided(price.low / price.value, 1.0, price.high / price.value, normal)


@functools.lru_cache(maxsize=1024)
def _drawn(
    parameters: float, devices: int, device: str, inputs: ReliabilityInputs
) -> tuple[Array, Array]:
    """[draws] wall time over steady steps, and the quantile of the step in its interval."""
    rng = np.random.default_rng(_SEED)
    clusters = draw_clusters(parameters, devices, device, inputs, draws=_DRAWS, rng=rng)
    normal = rng.standard_normal(_DRAWS)
    return expected(clusters).wall_s * clusters.contingency, normal
