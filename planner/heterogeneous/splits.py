"""Stage splits on mixed devices: what a pipeline of these devices can be, at best.

For every set of devices that may form one pipeline, all orders of the devices and all contiguous
splits of the blocks are searched by a dynamic programme from the last stage to the first; kept are
the splits that no other beats in both the longest stage and the sum of stages. The programme runs
for every limit on the longest stage at once: the limits are the distinct times of stages.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.chain.problem import Array
from planner.costs.priced_model import range_sums
from planner.front import front

Index = npt.NDArray[np.intp]
Counted = npt.NDArray[np.int_]

_SAME = 1e-9  # relative; times of stages this close are one limit


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTables:
    """What every stage would take on every type of device. n blocks, Q types.

    counts      [Q] devices of each type
    seconds     [Q][depth] of [n, n+1]: seconds per micro-batch of blocks [i, j) on a device of the
                type as the k-th stage from the end (k = 1, 2, ..., depth; what is in flight there
                decides about memory), messages over the cut behind it included; infinite where it
                does not fit and where j <= i. A longer range takes no less.
    tails_s     [Q] of [n, n+1]: seconds after the last backward if [i, j) is the first stage
    stages      how many stages a pipeline may have
    num_microbatches   to share out among the replicas
    """

    counts: tuple[int, ...]
    seconds: tuple[tuple[Array, ...], ...]
    tails_s: tuple[Array, ...]
    stages: tuple[int, ...]
    num_microbatches: int

    @property
    def num_blocks(self) -> int:
        return int(self.seconds[0][0].shape[0])

    def depth(self, from_end: int) -> int:
        """Which of the tables is that of the stage so many from the end, 1 the last."""
        return min(from_end, len(self.seconds[0])) - 1

    def of_stage(self, kind: int, from_end: int) -> Array:
        """[n, n+1] of a type as the stage so many from the end."""
        return self.seconds[kind][self.depth(from_end)]


def ranged(row: Array) -> Array:
    """[n, n+1] sums of row[i:j]; infinite where j <= i."""
    found = range_sums(row)
    found[np.tril_indices(len(row), 0, len(row) + 1)] = np.inf
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A pipeline: the device type of each stage, and its first block.

    longest_s  the longest stage;  sum_s  all stages, and the first one's tail

    The messages down and up over the cut behind a stage count as its work, which is so where
    messages wait in the computing stream and else errs on the slow side.
    """

    longest_s: float
    sum_s: float
    devices: tuple[int, ...]
    first_blocks: tuple[int, ...]

    def pipeline_s(self, num_microbatches: int) -> float:
        """sum + (m - 1) longest: the 1F1B step if every stage were as slow to fill and drain.

        Never less than the timeline of the same stages, and equal to it where the last stage is
        the longest (planner/chain/problem.py says why; Narayanan et al., SC'21, section 2.2.1).
        """
        return self.sum_s + (num_microbatches - 1) * self.longest_s


def least_s(
    longest_s: float | Array,
    sum_s: float | Array,
    stages: float | Array,
    num_microbatches: int | Counted,
) -> Array:
    """Seconds that are never more than the timeline of the same stages, and equal to it for equal
    stages; of several splits or micro-batches as arrays of like shapes.

    Let T be the longest of p stages, number s from 0, `behind` the sum of the stages behind it, and
    w = min(m, p - s) of m micro-batches in flight there. Paths of 1f1b (chain/problem.py):
        through s in steady state, m > w        sum + (m - w) T + behind
        down to s, all its work, and up         sum + (m - 1) T - behind
        m = w: all forwards of s before the last micro-batch comes back, or all its backwards behind
        the first one's; the longer             sum + (m - 1) T / 2 or more
    Of the stages up to s none is longer, so that `behind` is sum - (s + 1) T or more and the first
    path takes 2 sum + (m - p - 1) T. The mean of the first two takes sum + (m - (w + 1) / 2) T, as
    the third does.
    """
    m, p = num_microbatches, stages
    there_and_back_s = np.where(m > p, 2 * sum_s + (m - p - 1) * longest_s, 0.0)
    mean_s = sum_s + (m - (np.minimum(m, p) + 1) / 2) * longest_s
    return np.asarray(np.maximum(np.maximum(m * longest_s, mean_s), there_and_back_s))


Counts = tuple[int, ...]
"""How many devices of each type."""


def best_splits(tables: StageTables) -> dict[Counts, tuple[Split, ...]]:
    """The splits worth considering for each set of devices that can form one pipeline.

    A set that cannot hold the model is left out. Complexity: limits x sets x types x n^2.
    """
    limits = _limits(tables)
    if not len(limits):
        return {}
    sums = suffix_sums(tables, limits)
    found: dict[Counts, tuple[Split, ...]] = {}
    for counts in sums:
        if sum(counts) not in tables.stages:
            continue
        kept = front(
            _splits_of(tables, sums, counts, limits),
            lambda split: (split.longest_s, split.sum_s, split.devices, split.first_blocks),
        )
        if kept:
            found[counts] = tuple(kept)
    return found


def suffix_sums(tables: StageTables, limits: Array) -> dict[Counts, Array]:
    """Per set of devices [n + 1, limits]: the least sum of stages that hold blocks i to n, one on
    each device of the set, none longer than the limit; infinite where there are none."""
    n = tables.num_blocks
    empty = np.full((n + 1, len(limits)), np.inf)
    empty[n] = 0.0
    found: dict[Counts, Array] = {(0,) * len(tables.counts): empty}
    keeps = [[np.searchsorted(limits, table) for table in row] for row in tables.seconds]
    for counts in _sets(tables):
        best = np.full((n + 1, len(limits)), np.inf)
        for kind, rest in _removed(counts):
            from_end = tables.depth(sum(counts))
            _put_in_front(tables.seconds[kind][from_end], keeps[kind][from_end], found[rest], best)
        found[counts] = best
    return found


def _put_in_front(times: Array, first_limits: Index, behind: Array, best: Array) -> None:
    """Lowers best[i, l] to the least of times[i, j] + behind[j, l] over the ends j of a stage that
    begins with block i and keeps limit l.

    times         [n, n+1]; first_limits  the first of the rising limits that each keeps
    behind, best  [n + 1, limits]
    """
    for i, j in zip(*np.nonzero(np.isfinite(times)), strict=True):
        kept = slice(int(first_limits[i, j]), None)
        np.minimum(best[i, kept], times[i, j] + behind[j, kept], out=best[i, kept])


def _limits(tables: StageTables) -> Array:
    """Distinct times of stages, rising, each a little above the times that it stands for."""
    every = np.concatenate([table.ravel() for row in tables.seconds for table in row])
    times = np.unique(every[np.isfinite(every)])
    if not len(times):
        return times
    apart = np.concatenate([np.diff(times) > _SAME * times[1:], [True]])
    return np.asarray(times[apart] * (1 + _SAME))


def _sets(tables: StageTables) -> Iterator[Counts]:
    """Sets of devices that may stand behind each other, smaller ones first."""
    ranges = [range(count + 1) for count in tables.counts]
    most = max(tables.stages)
    for counts in sorted(itertools.product(*ranges), key=lambda c: (sum(c), c)):
        if 1 <= sum(counts) <= most:
            yield counts


def _removed(counts: Counts) -> Iterator[tuple[int, Counts]]:
    """(type, the others) for each type in the set."""
    for kind, count in enumerate(counts):
        if count:
            yield kind, tuple(c - (k == kind) for k, c in enumerate(counts))


def _splits_of(
    tables: StageTables, sums: Mapping[Counts, Array], counts: Counts, limits: Array
) -> Iterator[Split]:
    """The best split under each limit that allows a better one than the limit before."""
    before = np.inf
    firsts = []
    for kind, rest in _removed(counts):
        times = tables.of_stage(kind, sum(counts))[0][:, None]
        allowed = np.where(times <= limits[None], times, np.inf)
        firsts.append((allowed + sums[rest] + tables.tails_s[kind][0][:, None]).min(axis=0))
    totals = np.min(firsts, axis=0)
    for index in range(len(limits)):
        if totals[index] < before * (1 - _SAME):
            before = float(totals[index])
            yield _traced(tables, sums, counts, float(limits[index]), index)


def _traced(
    tables: StageTables, sums: Mapping[Counts, Array], counts: Counts, limit: float, index: int
) -> Split:
    """The split behind a sum; of equal ones that with the first types and shortest stages."""
    devices, firsts, times_s = [], [], []
    first, sum_s = 0, 0.0
    while sum(counts):
        best = (np.inf, 0, counts, 0)
        for kind, rest in _removed(counts):
            times = tables.of_stage(kind, sum(counts))[first]
            cost = np.where(times <= limit, times, np.inf) + sums[rest][:, index]
            if first == 0:
                cost = cost + tables.tails_s[kind][0]
            end = int(np.argmin(cost))
            if cost[end] < best[0]:
                best = (float(cost[end]), kind, rest, end)
        _, kind, rest, end = best
        times_s.append(float(tables.of_stage(kind, sum(counts))[first, end]))
        if first == 0:
            sum_s += float(tables.tails_s[kind][0, end])
        devices.append(kind)
        firsts.append(first)
        first, counts = end, rest
    return Split(
        longest_s=max(times_s),
        sum_s=sum_s + sum(times_s),
        devices=tuple(devices),
        first_blocks=tuple(firsts),
    )
