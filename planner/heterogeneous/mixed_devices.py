"""Pipelines on mixed devices: which devices form each replica, and its share of micro-batches.

    step = max over replicas of [ sum_r + (m_r - 1) longest_r ] + reduce(d),    sum of m_r = M

with sum_r and longest_r of the replica's stages (`mixed_stages.Split.pipeline_s`) and d replicas.
Devices may be left out, whole replicas too. The least step is found exactly: it is one of finitely
many values (a split, a number of micro-batches), and for a given value a knapsack over the sets of
devices says how many micro-batches d replicas get done in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.heterogeneous.mixed_stages import Counts, Split, StageTables, least_s

_NEVER = -(1 << 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedReplica:
    """A pipeline with its share of the micro-batches and the seconds these take it."""

    split: Split
    num_microbatches: int

    @property
    def pipeline_s(self) -> float:
        """Seconds of its micro-batches through its stages."""
        return self.split.pipeline_s(self.num_microbatches)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSolution:
    """The best plan. unused: devices of each type that would only slow the step down."""

    replicas: tuple[MixedReplica, ...]
    step_s: float
    unused: Counts


def share_out(
    splits: Mapping[Counts, tuple[Split, ...]],
    tables: StageTables,
    *,
    reduce_s: Sequence[float],
    replicas: Sequence[int] = (),
) -> MixedSolution | None:
    """The best replicas and shares, or None where there are not devices for so many replicas.

    reduce_s  [d] seconds to reduce the gradients over d + 1 replicas
    replicas  how many there may be; empty for any number
    """
    limits, num_microbatches = tables.counts, tables.num_microbatches
    times = {counts: _times(kept, num_microbatches) for counts, kept in splits.items()}
    values = np.unique(np.concatenate(list(times.values())))
    best: tuple[float, int, float] | None = None  # step, replicas, pipeline seconds
    most = min(len(reduce_s), sum(limits), num_microbatches)
    for count in replicas or range(1, most + 1):
        if count > most:
            continue
        end = len(values)
        if best is not None:
            end = int(np.searchsorted(values, best[0] - reduce_s[count - 1], side="left"))
        low = _first_in_time(times, limits, values[:end], count, num_microbatches)
        if low < end:
            pipeline_s = float(values[low])
            if best is None or pipeline_s + reduce_s[count - 1] < best[0]:
                best = (pipeline_s + reduce_s[count - 1], count, pipeline_s)
    if best is None:
        return None
    chosen = _traced(times, limits, best[2], best[1], num_microbatches)
    shared = _shared(chosen, splits, times, num_microbatches)
    used = np.sum(np.array(chosen), axis=0)
    return MixedSolution(
        replicas=shared,
        step_s=max(replica.pipeline_s for replica in shared) + reduce_s[best[1] - 1],
        unused=tuple(int(limit - count) for limit, count in zip(limits, used, strict=True)),
    )


def least_step_s(
    splits: Mapping[Counts, tuple[Split, ...]],
    tables: StageTables,
    *,
    replicas: int,
    below_s: float = float("inf"),
) -> float:
    """Seconds that no step of so many replicas of these splits undercuts on the timeline
    (`mixed_stages.least_s`), gradients not reduced; infinite where it is `below_s` or more."""
    limits, num_microbatches = tables.counts, tables.num_microbatches
    times = {counts: _times(kept, num_microbatches, least=True) for counts, kept in splits.items()}
    if not times:
        return float("inf")
    values = np.unique(np.concatenate(list(times.values())))
    values = values[values < below_s]
    if not len(values):
        return float("inf")
    last = _most_microbatches(times, limits, float(values[-1]), replicas)[-1]
    if int(last.max()) < num_microbatches:
        return float("inf")
    return float(values[_first_in_time(times, limits, values, replicas, num_microbatches)])


Times = npt.NDArray[np.float64]


def _times(splits: tuple[Split, ...], num_microbatches: int, *, least: bool = False) -> Times:
    """[M] seconds of the best of the splits for 1 to M micro-batches; rising."""
    many = np.arange(1, num_microbatches + 1)
    longest, sums, stages = (
        np.asarray(column, dtype=np.float64)[:, None]
        for column in zip(
            *((split.longest_s, split.sum_s, len(split.devices)) for split in splits), strict=True
        )
    )
    timed = least_s(longest, sums, stages, many) if least else sums + (many - 1) * longest
    return np.asarray(timed.min(axis=0))


def _first_in_time(
    times: Mapping[Counts, Times],
    limits: Counts,
    values: Times,
    replicas: int,
    num_microbatches: int,
) -> int:
    """The first of the rising values in which so many replicas get all done, or their number."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        layers = _most_microbatches(times, limits, float(values[middle]), replicas)
        if int(layers[-1].max()) >= num_microbatches:
            high = middle
        else:
            low = middle + 1
    return low


def _most_microbatches(
    times: Mapping[Counts, Times], limits: Counts, pipeline_s: float, replicas: int
) -> list[npt.NDArray[np.int64]]:
    """Per number of replicas 0 to `replicas`: [limits + 1 each] the most micro-batches that so many
    replicas finish in time with exactly so many devices of each type."""
    shape = tuple(limit + 1 for limit in limits)
    start = np.full(shape, _NEVER, dtype=np.int64)
    start[(0,) * len(limits)] = 0
    layers = [start]
    done = {
        counts: int(np.searchsorted(row, pipeline_s, side="right")) for counts, row in times.items()
    }
    for _ in range(replicas):
        before, after = layers[-1], np.full(shape, _NEVER, dtype=np.int64)
        for counts, microbatches in done.items():
            if not microbatches:
                continue
            to = tuple(slice(count, None) for count in counts)
            source = tuple(slice(None, n - c) for n, c in zip(shape, counts, strict=True))
            np.maximum(after[to], before[source] + microbatches, out=after[to])
        layers.append(after)
    return layers


def _traced(
    times: Mapping[Counts, Times],
    limits: Counts,
    pipeline_s: float,
    replicas: int,
    num_microbatches: int,
) -> list[Counts]:
    """The devices of each replica, with the fewest devices in all that are enough."""
    layers = _most_microbatches(times, limits, pipeline_s, replicas)
    enough = np.argwhere(layers[-1] >= num_microbatches)
    place = min((tuple(int(c) for c in row) for row in enough), key=lambda c: (sum(c), c))
    chosen: list[Counts] = []
    for layer in range(replicas, 0, -1):
        for counts, row in sorted(times.items()):
            rest = tuple(a - b for a, b in zip(place, counts, strict=True))
            done = int(np.searchsorted(row, pipeline_s, side="right"))
            if min(rest) < 0 or not done:
                continue
            if layers[layer - 1][rest] + done == layers[layer][place]:
                chosen.append(counts)
                place = rest
                break
    return sorted(chosen, reverse=True)


def _shared(
    chosen: list[Counts],
    splits: Mapping[Counts, tuple[Split, ...]],
    times: Mapping[Counts, Times],
    num_microbatches: int,
) -> tuple[MixedReplica, ...]:
    """Micro-batches one by one to the replica that would be done first; each has one or more."""
    shares = [1] * len(chosen)
    for _ in range(num_microbatches - len(chosen)):
        _, first = min((times[counts][shares[i]], i) for i, counts in enumerate(chosen))
        shares[first] += 1
    found = []
    for counts, share in zip(chosen, shares, strict=True):
        candidates = [MixedReplica(split=split, num_microbatches=share) for split in splits[counts]]
        found.append(min(candidates, key=lambda replica: replica.pipeline_s))
    return tuple(found)
