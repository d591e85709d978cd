"""Ranks that do the same work and do not take the same time.

Cores of one machine are not equally fast at every moment, and a step waits for the slowest of its
ranks: at the exchange of gradients, at every cut of a pipeline, at every sum of tensor parallelism.

In a pipeline, and where no steps were measured, a profile says how much slower than their mean the
slowest of all its devices is (`Measurements.slowest`), whatever the work.

In steps without a pipeline (`StepOverhead`) what all ranks have alike, waiting for cores, grows
with the work; by how much the slowest is over their mean grows with the work's root, as sums of
many small independent delays do; and what meeting takes is the same in every step. Measured on two
cores of an EPYC (2026-11-23, 15 runs of a small Llama of 24 steps each): 1.0 % of the work for all
ranks; the slower one 0.8, 1.7, 2.1, 2.0 and 2.2 ms over the mean in steps of 58, 118, 162, 295 and
567 ms, an exponent of 0.42; meeting 0.3 to 1.4 ms, mean 1.0, whatever the step (with 1.0 ms the
median errors of 12 and 15 modules run the same day are 8 and 13 %, without it 11 and 19 %).

Fewer ranks wait less for the slowest, as the largest of fewer draws from one normal distribution
does.
"""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

from simulator.memory.data_group import DataGroup


def slowest_rank(group: DataGroup, work_s: float) -> float:
    """Time of the slowest of a plan's ranks over that of their mean, of devices like those of
    `group`; 1 for one rank, and where it was not measured.

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
    """Of so many draws from a standard normal distribution, within 4 % (Blom, Statistical Estimates
    and Transformed Beta-Variables, 1958: the quantile of (n - 3/8) / (n + 1/4))."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
