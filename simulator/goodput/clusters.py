"""`Clusters`: many clusters that the inputs may mean, each a draw of what differs between them, and
the saves and loads of a run's states on them.

Symbols: M mean time between interruptions, d seconds that the run stands still for a save, t
seconds of training between saves. With exponential times between failures a kept interval takes
M e^(R/M) (e^((t+d)/M) - 1) seconds on average, R to restart (Daly, FGCS 22(3), 2006, eq. 20; a
failure may also strike while another is repaired). That over t is least where

    (1 - t/M) e^(t/M) = e^(-d/M)

which does not depend on R; for d much less than M it is Young's t = sqrt(2 d M) (CACM 17(9), 1974).
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
    """Seconds of training between saves that lose least, at least what a save itself takes (the
    next one waits for it).

    >>> round(best_interval_s(11135.0, 2.84))
    250
    """
    if pause_s <= 0:
        return max(save_s, 1.0)
    # f(x) = (x - 1) e^x + e^(-d/M) is convex above 0 and positive at 1: Newton from there comes
    # down to its root.
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
    """Arrays have one entry per cluster; rates are per second of a running job.

    inputs            what is alike in all clusters
    every_s           seconds of training between saves, planned for the middle cluster
    failure_rate, spot_rate   unexpected interruptions, capacity taken back
    recovery_s        to detect a failure and restart, of one that needs nobody; mean in the cluster
    save_s            of a checkpoint: from its begin until a restart may load it
    pause_s, load_s   the pause in training that a save makes, and a load
    slow              what slow hosts add to the time of training
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
        """Time of training, slow hosts and evaluations in it, over that of steady steps."""
        return (1.0 + self.slow) / (1.0 - self.inputs.evaluation_share)

    @property
    def spot_saved(self) -> NDArray[np.bool_]:
        """Whether the states are saved within the notice before capacity is taken back."""
        return self.save_s <= self.inputs.spot_warning_s

    @property
    def between_s(self) -> Array:
        """Mean time between unexpected interruptions, none of spot capacity among them."""
        return 1.0 / self.failure_rate

    @property
    def maintenance_s(self) -> Array:
        """Seconds of a planned interruption: a save, the work, half of a recovery (there is nothing
        to detect) and a load."""
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
    """`draws` clusters of so many devices, for a model of so many parameters."""
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

    failure_rate = rate * spread(inputs.failure_spread)
    recovery = spread(inputs.recovery_spread)
    storage = spread(inputs.storage_spread)
    slow = inputs.slow_devices * devices * spread(inputs.slow_spread)
    return Clusters(
        inputs=inputs,
        every_s=every_s,
        failure_rate=failure_rate,
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
    """Log-normal draws with the median `value` and, on either side of it, the 5 % and 95 %
    quantiles `low` and `high`."""
    if not 0 < low <= value <= high:
        return np.full_like(normal, value)
    down, up = math.log(value / low) / HALF_90, math.log(high / value) / HALF_90
    return np.asarray(value * np.exp(np.where(normal < 0, down, up) * normal))


def interval_of(draws: Array) -> Interval:
    """The median and the 5 % and 95 % quantiles of draws."""
    low, value, high = (float(end) for end in np.quantile(draws, (0.05, 0.5, 0.95)))
    return Interval(value=value, low=low, high=high)
