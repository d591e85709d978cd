"""Ranks that do the same work and do not take the same time.

Cores of one machine are not equally fast at every moment, and a step waits for the slowest of its
ranks: at the exchange of gradients, at every cut of a pipeline, at every sum of tensor parallelism.
A profile says how much slower than their mean the slowest of all its devices is
(`Measurements.slowest`; in whole steps without a pipeline, waiting for cores in it,
`StepOverhead.slowest`); fewer ranks wait less, as the largest of fewer draws from one normal
distribution does.
"""

from __future__ import annotations

import functools
from statistics import NormalDist

from profiles.hardware.catalogue.cluster import Cluster


def slowest_rank(cluster: Cluster, device: int, num_ranks: int, *, pipelined: bool) -> float:
    """Time of the slowest of so many ranks over that of their mean, of devices like number `device`
    of the cluster; 1 for one rank, and where it was not measured."""
    measured = cluster.device_at(device).measurements
    if measured is None or min(num_ranks, cluster.num_devices) < 2:
        return 1.0
    whole = None if pipelined else measured.step
    slowest = measured.slowest if whole is None else whole.slowest
    share = _expected_largest(num_ranks) / _expected_largest(cluster.num_devices)
    return 1.0 + (slowest - 1.0) * min(1.0, share)


@functools.cache
def _expected_largest(count: int) -> float:
    """Of so many draws from a standard normal distribution, within 4 % (Blom, Statistical Estimates
    and Transformed Beta-Variables, 1958: the quantile of (n - 3/8) / (n + 1/4))."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
