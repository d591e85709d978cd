"""`time_to_train`: when a whole run is done, how sure that is, and what its time goes to.

Every simulated run is one cluster of those that the inputs may mean (clusters.py), one step time of
its interval, and its own luck with failures (simulated_runs.py). The step's interval is a 90 % one
and is taken as log-normal on either side of its value.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from profiles.errors import InputError
from simulator.goodput.clusters import Array, draw_clusters, two_sided
from simulator.goodput.expected_time import PARTS, spares_for
from simulator.goodput.reliability_inputs import DEFAULT, ReliabilityInputs
from simulator.goodput.simulated_runs import simulate_runs
from simulator.values.prediction import Interval

_DAY_S = 86400.0
_ENDS = (0.05, 0.5, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToTrain:
    """A whole run. Intervals are the median and the 5 % and 95 % quantiles.

    days, device_hours   all of it, contingency included
    days_without_contingency   what steady steps and known losses take
    contingency          factor on those days
    productive_time      share of `days_without_contingency` in which steps are made that are kept
    parts                share of it lost, by cause; with productive_time's mean they add up to 1
    interruptions        unexpected, and of spot capacity;  failures_by_source  the mean of the
                         former by class of source
    spare_nodes          with which such a run waits for one for less than 1 % of its time
    sorted_days          of each simulated run, the shortest first
    """

    days: Interval
    device_hours: Interval
    days_without_contingency: Interval
    contingency: Interval
    productive_time: Interval
    parts: Mapping[str, float]
    checkpoint_every_s: float
    checkpoint_s: Interval
    between_failures_s: Interval
    interruptions: Interval
    failures_by_source: Mapping[str, float]
    spare_nodes: int
    sorted_days: tuple[float, ...]

    def probability_by(self, days: float) -> float:
        """Probability (0 to 1) that the run has ended after so many days."""
        return bisect.bisect_right(self.sorted_days, days) / len(self.sorted_days)

    def days_with(self, probability: float) -> float:
        """Days after which the run has ended with this probability."""
        last = len(self.sorted_days) - 1
        return self.sorted_days[min(last, max(0, math.ceil(probability * (last + 1)) - 1))]


def time_to_train(
    step_time: Interval,
    steps: float,
    devices: int,
    device_name: str,
    parameters: float,
    inputs: ReliabilityInputs = DEFAULT,
    seed: int = 0,
    runs: int = 2000,
) -> TimeToTrain:
    """The run of `steps` steps on `devices` devices, its states those of `parameters` parameters.

    runs  simulated;  equal arguments give equal results, bit by bit

    Raises InputError for a step time, steps, devices or runs that are not above 0.
    """
    counts = {"steps": steps, "devices": devices, "parameters": parameters, "runs": runs}
    for name, number in {**counts, "step time": step_time.low}.items():
        if not (number > 0 and math.isfinite(number)):
            raise InputError(f"{name} = {number!r}: a number above 0 is wanted")
    rng = np.random.default_rng(seed)
    clusters = draw_clusters(parameters, devices, device_name, inputs, draws=runs, rng=rng)
    normal = rng.standard_normal(runs)
    step_s = two_sided(step_time.low, step_time.value, step_time.high, normal)
    found = simulate_runs(clusters, steps * step_s, rng=rng)
    plain = found.wall_s / _DAY_S
    days = plain * clusters.contingency
    whole = interval_of(days)
    unexpected = clusters.failure_rate / (clusters.failure_rate + clusters.spot_rate)
    failures = float(np.mean(found.interruptions * unexpected))
    return TimeToTrain(
        days=whole,
        device_hours=whole.scaled(24.0 * devices),
        days_without_contingency=interval_of(plain),
        contingency=interval_of(clusters.contingency),
        productive_time=interval_of(found.steady_s / found.wall_s),
        parts={name: float(np.mean(found.lost_s[name] / found.wall_s)) for name in PARTS},
        checkpoint_every_s=clusters.every_s,
        checkpoint_s=interval_of(clusters.save_s),
        between_failures_s=interval_of(clusters.between_s),
        interruptions=interval_of(found.interruptions),
        failures_by_source={name: share * failures for name, share in inputs.shares.items()},
        spare_nodes=spares_for(inputs.broken_nodes(devices, device_name)),
        sorted_days=tuple(np.sort(days).tolist()),
    )


def interval_of(draws: Array) -> Interval:
    """The median and the 5 % and 95 % quantiles of draws."""
    low, value, high = (float(end) for end in np.quantile(draws, _ENDS))
    return Interval(value=value, low=low, high=high)
