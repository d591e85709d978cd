"""What failures leave of a long run's time: mean time between them, checkpoints, what is lost.

Of n devices the mean time between failures is that of one over n. With a checkpoint that takes d
seconds every t, a failure costs the restart R and half an interval of work, so that of the time

    d / t + (t / 2 + R) / M        M mean time between failures

is lost, least at t = sqrt(2 d M) (Young, CACM 17(9), 1974; Daly, FGCS 22(3), 2006, section 2; valid
while d and R are much less than M). What is left is the goodput; the ends of its interval take the
ends of all four figures together, which is wider than 90 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulator.values.prediction import Interval

_DAY_S = 86400.0
# Failures per device and second. Value: 419 unexpected interruptions in 54 days of 16,384 H100
# (Llama 3, arXiv 2407.21783, section 3.3.4); ends: 2.34 and 6.50 failures per 1,000 node-days of
# eight A100 (Kokolis et al., arXiv 2410.21680: clusters RSC-2 and RSC-1). Both checked against
# what others cite of them, 2026-11-21. Other devices are assumed alike.
FAILURES_PER_DEVICE_S = Interval(
    value=419 / (54 * 16384) / _DAY_S, low=2.34e-3 / 8 / _DAY_S, high=6.50e-3 / 8 / _DAY_S
)
# Storage that a device has to itself while all write: 2 TB/s sustained and 7 TB/s at the peak for
# 16,384 devices (arXiv 2407.21783, section 3.3.1, checked as above); the low end, half of the
# former, is assumed.
STORAGE_BYTES_PER_S = Interval(value=2e12 / 16384, low=1e12 / 16384, high=7e12 / 16384)
# From a failure to the next step. High end: more than 90 % effective training time with 419
# interruptions in 54 days (arXiv 2407.21783, section 3.3.4) leaves 18.6 minutes for each at most,
# lost work and all. Value: a fault is found and diagnosed in less than 10 minutes on average
# (MegaScale, arXiv 2402.15627). The low end of 5 minutes is assumed.
RESTART_S = Interval(value=600.0, low=300.0, high=0.1 * 54 * _DAY_S / 419)
# Of a parameter: weight in 16 bits, master weight and Adam's two moments in fp32.
_CHECKPOINT_BYTES = 14.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Of a long run.

    between_failures_s     mean time between failures of any device
    checkpoint_every_s     the interval that loses least;  checkpoint_s  what one takes
    goodput                share (0 to 1) of time spent on steps that are kept
    """

    between_failures_s: Interval
    checkpoint_every_s: float
    checkpoint_s: Interval
    goodput: Interval


def reliability(num_parameters: float, num_devices: int) -> Reliability:
    """Of a model of so many parameters, whose states all devices write together.

    >>> found = reliability(405e9, 16384)
    >>> round(found.between_failures_s.value / 3600, 1)  # hours
    3.1
    """
    stored = _CHECKPOINT_BYTES * num_parameters / num_devices
    rate, storage = FAILURES_PER_DEVICE_S, STORAGE_BYTES_PER_S
    between = Interval(
        value=1 / (rate.value * num_devices),
        low=1 / (rate.high * num_devices),
        high=1 / (rate.low * num_devices),
    )
    writes = Interval(
        value=stored / storage.value, low=stored / storage.high, high=stored / storage.low
    )
    every = math.sqrt(2 * writes.value * between.value)
    return Reliability(
        between_failures_s=between,
        checkpoint_every_s=every,
        checkpoint_s=writes,
        goodput=Interval(
            value=_goodput(writes.value, every, between.value, RESTART_S.value),
            low=_goodput(writes.high, every, between.low, RESTART_S.high),
            high=_goodput(writes.low, every, between.high, RESTART_S.low),
        ),
    )


def _goodput(writes_s: float, every_s: float, between_s: float, restart_s: float) -> float:
    lost = writes_s / every_s + (every_s / 2 + restart_s) / between_s
    return max(0.0, 1.0 - lost)


def delivered(cost: Interval | None, goodput: Interval) -> Interval | None:
    """A cost per token that is kept: what was lost is paid too. None without a cost, or where
    nothing may be left."""
    if cost is None or goodput.low <= 0:
        return None
    return Interval(
        value=cost.value / goodput.value, low=cost.low / goodput.high, high=cost.high / goodput.low
    )
