"""`Clusters`: random draws of a cluster's failure rates, recovery times and storage speed.

Symbols, all in seconds: M mean time between interruptions, d pause of a save, t training between
saves, R restart. With exponential times between failures, an interval of training that is kept
takes M e^(R/M) (e^((t+d)/M) - 1) on average (Daly, FGCS 22(3), 2006, eq. 20; a failure may also
strike during a repair). Divided by t, this is smallest for the t that solves

    (1 - t/M) e^(t/M) = e^(-d/M)

It does not depend on R. For d much less than M it is Young's t = sqrt(2 d M) (CACM 17(9), 1974).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.goodput.reliability_inputs import ReliabilityInputs
from simulator.values.prediction import Interval

_NEWTON_STEPS = 60


def best_interval_s(between_s: float, pause_s: float, save_s: float = 0.0) -> float:
    """Seconds of training between saves with the smallest loss of time; at least `save_s`, as one
    save must end before the next begins.

    >>> round(best_interval_s(11135.0, 2.84))
    250
    """
    if pause_s <= 0:
        return max(save_s, 1.0)
    # f(x) = (x - 1) e^x + e^(-d/M) is convex above 0 and positive at 1, so Newton's method from 1
    # descends to the root.
    end, x = math.exp(-pause_s / between_s), 1.0
    for _ in range(_NEWTON_STEPS):
        x -= ((x - 1) * math.exp(x) + end) / (x * math.exp(x))
        if x <= 0:
            break
    if not x > 0:
        x = math.sqrt(2 * pause_s / between_s)
    return max(x * between_s, save_s)


Array = NDArray[np.float64]

_HOUR_S = 3600.0
# Half-width of a 90 % interval of a normal distribution, in standard deviations.
HALF_90 = 1.6448536269514722


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clusters:
    """One array entry per cluster; rates are per second of a running job.

    inputs            values common to all clusters
    every_s           seconds of training between saves, optimal for the median cluster
    failure_rate, spot_rate   unexpected interruptions; reclaimed spot capacity
    recovery_s        mean seconds to detect a failure and restart without manual help
    save_s            seconds of a checkpoint, from its start until a restart can load it
    pause_s, load_s   seconds that a save pauses training; seconds of a load
    slow              share that slow hosts add to training time
    maintenance_rate  planned interruptions
    contingency       factor on the whole time
    """

    inputs: ReliabilityInputs
    every_s: float
    failure_rate: Array
    spot_rate: float
    recovery_s: Array
    save_s: Array
    pause_s: Array
    load_s: Array
    slow: Array
    maintenance_rate: float
    contingency: Array

    @property
    def slowing(self) -> Array:
        """Training time including slow hosts and evaluations, divided by the time of steady
        steps."""
        return (1.0 + self.slow) / (1.0 - self.inputs.evaluation_share)

    @property
    def spot_saved(self) -> NDArray[np.bool_]:
        """Whether a save fits in the notice given before spot capacity is reclaimed."""
        return self.save_s <= self.inputs.spot_warning_s

    @property
    def between_s(self) -> Array:
        """Mean time between unexpected interruptions, excluding reclaimed spot capacity."""
        return 1.0 / self.failure_rate

    @property
    def maintenance_s(self) -> Array:
        """Seconds of a planned interruption: a save, the maintenance, half of a recovery (no
        detection) and a load."""
        return self.inputs.maintenance_s + self.load_s + self.pause_s + self.recovery_s / 2


def draw_clusters(
    parameters: float,
    devices: int,
    device_name: str,
    inputs: ReliabilityInputs,
    *,
    draws: int,
    rng: np.random.Generator,
) -> Clusters:
    """`draws` random clusters of `devices` devices, for a model with `parameters` parameters."""
    stored = inputs.checkpoint_bytes_per_parameter * parameters
    write = inputs.storage_write_bytes_per_s or devices * inputs.write_bytes_per_s_per_device
    read = inputs.storage_read_bytes_per_s or devices * inputs.read_bytes_per_s_per_device
    save_s = stored / write
    pause_s = inputs.checkpoint_blocking_share * save_s
    rate = devices / (inputs.failure_device_hours(device_name) * _HOUR_S)
    spot = devices * inputs.spot_interruptions_per_device_hour / _HOUR_S
    every_s = inputs.checkpoint_every_s or best_interval_s(1.0 / (rate + spot), pause_s, save_s)

    def spread(factor: float) -> Array:
        return np.asarray(factor ** (rng.standard_normal(draws) / HALF_90))

    recovery = spread(inputs.recovery_spread)
    storage = spread(inputs.storage_spread)
    slow = inputs.slow_devices * devices * spread(inputs.slow_spread)
    return Clusters(
        inputs=inputs,
        every_s=every_s,
        failure_rate=rate * spread(inputs.failure_spread),
        spot_rate=spot,
        recovery_s=(inputs.detection_s + inputs.restart_s) * recovery,
        save_s=save_s * storage,
        pause_s=pause_s * storage,
        load_s=stored / read * storage,
        slow=inputs.slow_by * -np.expm1(-slow),
        maintenance_rate=devices / (inputs.maintenance_device_hours * _HOUR_S),
        contingency=inputs.contingency_of(device_name) * spread(inputs.contingency_spread),
    )


def two_sided(low: float, value: float, high: float, normal: Array) -> Array:
    """Log-normal draws with median `value` and 5 % and 95 % quantiles `low` and `high`; each side
    has a different spread."""
    if not 0 < low <= value <= high:
        return np.full_like(normal, value)
    down, up = math.log(value / low) / HALF_90, math.log(high / value) / HALF_90
    return np.asarray(value * np.exp(np.where(normal < 0, down, up) * normal))


def interval_of(draws: Array) -> Interval:
    """The median and the 5 % and 95 % quantiles of draws."""
    low, value, high = (float(end) for end in np.quantile(draws, (0.05, 0.5, 0.95)))
    return Interval(value=value, low=low, high=high)
