"""Splits of blocks into stages on mixed devices: the best pipelines of given devices.

For every set of devices that may form a pipeline, a dynamic program from the last stage to the
first searches all orders of the devices and all contiguous splits of the blocks. It keeps the
splits that are undominated in (longest stage, sum of stages).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.chain.problem import Array

Counted = npt.NDArray[np.int_]

_SAME = 1e-9  # relative; sums this close are equal


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTables:
    """The cost of every possible stage on every type of device. n blocks, Q types.

    counts      [Q] devices of each type
    seconds     [Q][depth] of [n, n+1]: seconds per micro-batch of blocks [i, j) on a device of the
                type as the k-th stage from the end (k = 1, 2, ..., depth, which determines its
                micro-batches in flight), including messages over the cut after it; infinite if it
                does not fit or j <= i. A longer range never takes less
    tails_s     [Q] of [n, n+1]: seconds after the last backward if [i, j) is the first stage
    stages      maximum number of stages of a pipeline
    num_microbatches   of all replicas together
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
        """Index of the table for the `from_end`-th stage from the end (1: the last)."""
        return min(from_end, len(self.seconds[0])) - 1

    def of_stage(self, kind: int, from_end: int) -> Array:
        """[n, n+1] seconds on a type as the `from_end`-th stage from the end."""
        return self.seconds[kind][self.depth(from_end)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A pipeline: the device type of each stage, and its first block.

    longest_s  seconds of the longest stage
    sum_s      sum of all stages and of the first stage's tail

    Messages over the cut after a stage count as its work. This is exact if messages run in the
    compute stream; otherwise it is an upper bound.
    """

    longest_s: float
    sum_s: float
    devices: tuple[int, ...]
    first_blocks: tuple[int, ...]

    def pipeline_s(self, num_microbatches: int) -> float:
        """sum + (m - 1) longest: the 1F1B step if every stage were as slow to fill and drain as the
        longest.

        Never less than the timeline of the same stages, and equal to it if the last stage is the
        longest (planner/chain/problem.py says why; Narayanan et al., SC'21, section 2.2.1).
        """
        return self.sum_s + (num_microbatches - 1) * self.longest_s


def least_s(
    longest_s: float | Array,
    sum_s: float | Array,
    stages: float | Array,
    num_microbatches: int | Counted,
) -> Array:
    """Lower bound in seconds on the timeline of the same stages, exact for equal stages. Arguments
    may be arrays of equal shape, for several splits or numbers of micro-batches.

    Let s, counted from 0, be the longest of p stages, T its time, `behind` the sum of the later
    stages, and w = min(m, p - s) its micro-batches in flight. Paths of 1f1b (chain/problem.py):
        m > w   through s in its steady state       sum + (m - w) T + behind
                to s, all its work, and back        sum + (m - 1) T - behind
        m = w   the longer of: all forwards of s before its first backward, or all its backwards
                after that; at least                   sum + (m - 1) T / 2
    No stage is longer than s, so `behind` is at least sum - (s + 1) T, and the first path takes at
    least 2 sum + (m - p - 1) T. The mean of the first two takes sum + (m - (w + 1) / 2) T, as the
    third does.
    """
    m, p = num_microbatches, stages
    there_and_back_s = np.where(m > p, 2 * sum_s + (m - p - 1) * longest_s, 0.0)
    mean_s = sum_s + (m - (np.minimum(m, p) + 1) / 2) * longest_s
    return np.asarray(np.maximum(np.maximum(m * longest_s, mean_s), there_and_back_s))


Counts = tuple[int, ...]
"""Number of devices of each type."""


def best_splits(tables: StageTables) -> dict[Counts, tuple[Split, ...]]:
    """The undominated splits for each set of devices that can form one pipeline.

    Sets that cannot hold the model are left out.
    """
    ends = {(0,) * len(tables.counts): np.asarray([[tables.num_blocks, -1, -1, 0.0, 0.0]]).T}
    found: dict[Counts, tuple[Split, ...]] = {}
    ranges = [range(count + 1) for count in tables.counts]
    for counts in sorted(itertools.product(*ranges), key=lambda c: (sum(c), c)):
        if 1 <= sum(counts) <= max(tables.stages):
            ends[counts] = _ends_on(tables, counts, ends)
            whole = np.flatnonzero(ends[counts][_FIRST] == 0)
            if sum(counts) in tables.stages and len(whole):
                found[counts] = tuple(_split(ends, counts, int(index)) for index in whole)
    return found


_FIRST, _KIND, _BEHIND, _LONGEST, _SUM = range(5)
"""The end of a pipeline: its first block, the type of its first device, the index of the remaining
end among the ends on the other devices, its longest stage, the sum of its stages."""


def _ends_on(tables: StageTables, counts: Counts, ends: Mapping[Counts, Array]) -> Array:
    """[5, ends] ends of pipelines with one stage on each device of the set. Dominated ends are left
    out: another with the same first block is better in both the longest stage and the sum."""
    found = []
    for first in range(tables.num_blocks):
        rows = []
        for kind, rest in _removed(counts):
            behind = ends[rest]
            last = behind[_FIRST].astype(int)
            times = tables.of_stage(kind, sum(counts))[first, last]
            sums = behind[_SUM] + times + (0.0 if first else tables.tails_s[kind][0, last])
            longest, place = np.maximum(times, behind[_LONGEST]), np.arange(len(last))
            fixed = np.ones((2, len(last))) * [[first], [kind]]
            rows.append(np.vstack([fixed, place, longest, sums])[:, np.isfinite(times)])
        row = np.concatenate(rows, axis=1)
        row = row[:, np.lexsort((row[_SUM], row[_LONGEST]))]
        least = np.minimum.accumulate(np.concatenate([[np.inf], row[_SUM]]))
        found.append(row[:, row[_SUM] < least[:-1] * (1 - _SAME)])
    return np.concatenate(found, axis=1)


def _removed(counts: Counts) -> Iterator[tuple[int, Counts]]:
    """Pairs (type, the set without one device of it) for each type in the set."""
    for kind, count in enumerate(counts):
        if count:
            yield kind, tuple(c - (k == kind) for k, c in enumerate(counts))


def _split(ends: Mapping[Counts, Array], counts: Counts, index: int) -> Split:
    longest_s, sum_s = ends[counts][[_LONGEST, _SUM], index]
    devices, firsts = [], []
    while sum(counts):
        first, kind, index = (int(value) for value in ends[counts][:_LONGEST, index])
        devices.append(kind)
        firsts.append(first)
        counts = tuple(c - (k == kind) for k, c in enumerate(counts))
    return Split(
        longest_s=float(longest_s),
        sum_s=float(sum_s),
        devices=tuple(devices),
        first_blocks=tuple(firsts),
    )
