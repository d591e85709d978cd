"""The slowest of ranks with equal work.

The cores of a machine are not equally fast at every moment, and a step waits for its slowest rank:
at the exchange of gradients, at every pipeline cut, and at every sum of tensor parallelism.

In a pipeline, and without measured steps, a profile gives the slowest device's time relative to the
mean of all devices (`Measurements.slowest`), for any work.

In steps without a pipeline (`StepOverhead`): waiting for cores, common to all ranks, is
proportional to the work; the slowest rank's excess over the mean is proportional to the root of the
work, like sums of many small independent delays; and synchronization takes a constant time per
step. Measured on two cores of an EPYC (2026-11-23, 15 runs of a small Llama of 24 steps each): 1.0
% of the work for all ranks; the slower one 0.8, 1.7, 2.1, 2.0 and 2.2 ms over the mean in steps of
58, 118, 162, 295 and 567 ms, an exponent of 0.42; synchronization 0.3 to 1.4 ms, mean 1.0, for any
step (with 1.0 ms the median errors of 12 and 15 modules run the same day are 8 and 13 %, without it
11 and 19 %).

Fewer ranks wait less for the slowest: the largest of fewer draws from a normal distribution.
"""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

from simulator.memory.data_group import DataGroup


def slowest_rank(group: DataGroup, work_s: float) -> float:
    """Time of the slowest of a plan's ranks over their mean, for devices like those of `group`; 1
    for one rank, or without a measurement.

    work_s  of a step without a pipeline: a rank's forwards and backwards without recomputation
    """
    measured, ranks = group.device.measurements, group.degrees.num_devices
    together = group.cluster.num_devices
    if measured is None or min(ranks, together) < 2:
        return 1.0
    share = min(1.0, _expected_largest(ranks) / _expected_largest(together))
    whole = None if group.pipelined else measured.step
    if whole is None:
        return 1.0 + (measured.slowest - 1.0) * share
    if whole.outside is None or work_s <= 0:
        return 1.0 + (whole.slowest - 1.0) * share
    apart = max(0.0, whole.slowest - 1.0 - whole.outside) * math.sqrt(whole.work_s / work_s)
    return 1.0 + whole.outside + apart * share + whole.meeting_s / work_s


@functools.cache
def _expected_largest(count: int) -> float:
    """Expected largest of `count` draws from a standard normal distribution, within 4 % (Blom,
    Statistical Estimates and Transformed Beta-Variables, 1958: the quantile of (n - 3/8) / (n +
    1/4))."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
