"""`reliability`: what failures leave of a long run's time, from the means of many clusters.

The figures of `time_to_train` without the luck of one run: fast enough for every layout of a
search.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from simulator.goodput.clusters import draw_clusters
from simulator.goodput.expected_time import PARTS, expected, spares_for
from simulator.goodput.reliability_inputs import DEFAULT, ReliabilityInputs
from simulator.goodput.time_to_train import interval_of
from simulator.values.prediction import Interval

_DRAWS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Of a long run.

    between_failures_s     mean time between unexpected interruptions
    checkpoint_every_s     the interval that loses least;  checkpoint_s  what a save takes
    goodput                share (0 to 1) of time spent on steps that are kept
    lost                   mean share of time by what it is lost to
    spare_nodes            with which a run waits for one for less than 1 % of its time
    """

    between_failures_s: Interval
    checkpoint_every_s: float
    checkpoint_s: Interval
    goodput: Interval
    lost: Mapping[str, float] = field(default_factory=dict)
    spare_nodes: int = 0

    def __hash__(self) -> int:
        # A mapping has no hash.
        return hash((self.between_failures_s, self.checkpoint_every_s, self.goodput))


@functools.lru_cache(maxsize=4096)
def reliability(
    num_parameters: float,
    num_devices: int,
    device_name: str = "",
    inputs: ReliabilityInputs = DEFAULT,
) -> Reliability:
    """Of a model of so many parameters, whose states all devices write together.

    device_name  in the catalogue; "" for a device of which nothing is known

    >>> found = reliability(405e9, 16384, "h100-sxm-80gb")
    >>> round(found.between_failures_s.value / 3600, 1)  # hours
    2.4
    """
    rng = np.random.default_rng(0)
    clusters = draw_clusters(
        num_parameters, num_devices, device_name, inputs, draws=_DRAWS, rng=rng
    )
    found = expected(clusters)
    return Reliability(
        between_failures_s=interval_of(clusters.between_s),
        checkpoint_every_s=clusters.every_s,
        checkpoint_s=interval_of(clusters.save_s),
        goodput=interval_of(found.productive),
        lost={name: float(np.mean(found.lost_s[name] / found.wall_s)) for name in PARTS},
        spare_nodes=spares_for(inputs.broken_nodes(num_devices, device_name)),
    )


def delivered(cost: Interval | None, goodput: Interval) -> Interval | None:
    """A cost per token that is kept: what was lost is paid too. None without a cost, or where
    nothing may be left."""
    if cost is None or goodput.low <= 0:
        return None
    return Interval(
        value=cost.value / goodput.value, low=cost.low / goodput.high, high=cost.high / goodput.low
    )
