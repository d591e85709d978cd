"""The devices of each replica, and its share of the micro-batches.

    step = max over replicas of [ sum_r + (m_r - 1) longest_r ],    sum of m_r = M

where m_r is the number of micro-batches of replica r, and sum_r and longest_r are the sum and the
maximum of its stages' seconds (`splits.Split.pipeline_s`). Devices may be left unused. The shortest
step of R replicas is one of finitely many values (one per split and number of micro-batches). For a
given value, a knapsack over the sets of devices gives the number of micro-batches that the replicas
finish in time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.chain.problem import Array
from planner.heterogeneous.splits import Counts, Split, StageTables, least_s

_NEVER = -(1 << 40)
Splits = Mapping[Counts, tuple[Split, ...]]
"""The splits worth considering for each set of devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One replica: its pipeline and its number of micro-batches."""

    split: Split
    num_microbatches: int

    @property
    def pipeline_s(self) -> float:
        """Seconds of its micro-batches through its stages."""
        return self.split.pipeline_s(self.num_microbatches)


def share_out(splits: Splits, tables: StageTables, replicas: int) -> tuple[Share, ...] | None:
    """The shares of `replicas` replicas with the shortest step; ties are broken by fewer devices.
    None if there are too few devices."""
    times = _times(splits, tables)
    step_s = _least(times, tables, replicas, np.inf)
    if not np.isfinite(step_s):
        return None
    chosen = _traced(times, tables, step_s, replicas)
    shares = [1] * replicas
    # Each micro-batch goes to the replica that would finish it first; every replica gets at least
    # one.
    for _ in range(tables.num_microbatches - replicas):
        _, first = min((times[counts][shares[i]], i) for i, counts in enumerate(chosen))
        shares[first] += 1
    return tuple(
        min(
            (Share(split=split, num_microbatches=share) for split in splits[counts]),
            key=lambda one: one.pipeline_s,
        )
        for counts, share in zip(chosen, shares, strict=True)
    )


def least_step_s(splits: Splits, tables: StageTables, replicas: int, *, below_s: float) -> float:
    """Lower bound in seconds on the timeline of `replicas` replicas of these splits
    (`splits.least_s`), without gradient reduction; infinite if it is at least `below_s`."""
    return _least(_times(splits, tables, least=True), tables, replicas, below_s)


def _times(splits: Splits, tables: StageTables, *, least: bool = False) -> dict[Counts, Array]:
    """Per set of devices: [M] seconds of its best split for 1 to M micro-batches, ascending."""
    many = np.arange(1, tables.num_microbatches + 1)
    found = {}
    for counts, kept in splits.items():
        longest, sums, stages = np.asarray(
            [(split.longest_s, split.sum_s, len(split.devices)) for split in kept]
        ).T[..., None]
        timed = least_s(longest, sums, stages, many) if least else sums + (many - 1) * longest
        found[counts] = np.asarray(timed.min(axis=0))
    return found


def _least(
    times: Mapping[Counts, Array], tables: StageTables, replicas: int, below_s: float
) -> float:
    """The shortest time in which `replicas` replicas finish all micro-batches, if below
    `below_s`."""

    def enough(step_s: float) -> bool:
        layers = _most_microbatches(times, tables.counts, step_s, replicas)
        return int(layers[-1].max()) >= tables.num_microbatches

    values = np.unique(np.concatenate([*times.values(), []]))
    values = values[values < below_s]
    if not len(values) or not enough(float(values[-1])):
        return float("inf")
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(float(values[middle])) else (middle + 1, high)
    return float(values[low])


def _most_microbatches(
    times: Mapping[Counts, Array], limits: Counts, step_s: float, replicas: int
) -> list[npt.NDArray[np.int64]]:
    """Per number of replicas, 0 to `replicas`: an array over the number of devices used of each
    type, with the most micro-batches finished in time."""
    shape = tuple(limit + 1 for limit in limits)
    start = np.full(shape, _NEVER, dtype=np.int64)
    start[(0,) * len(limits)] = 0
    layers = [start]
    done = {counts: _done(row, step_s) for counts, row in times.items()}
    for _ in range(replicas):
        before, after = layers[-1], np.full(shape, _NEVER, dtype=np.int64)
        for counts, microbatches in done.items():
            if microbatches:
                to = tuple(slice(count, None) for count in counts)
                source = tuple(slice(None, n - c) for n, c in zip(shape, counts, strict=True))
                np.maximum(after[to], before[source] + microbatches, out=after[to])
        layers.append(after)
    return layers


def _done(row: Array, step_s: float) -> int:
    """Number of micro-batches finished within `step_s`."""
    return int(np.searchsorted(row, step_s, side="right"))


def _traced(
    times: Mapping[Counts, Array], tables: StageTables, step_s: float, replicas: int
) -> list[Counts]:
    """The devices of each replica, using the fewest devices that suffice."""
    layers = _most_microbatches(times, tables.counts, step_s, replicas)
    enough = np.argwhere(layers[-1] >= tables.num_microbatches)
    place = min((tuple(int(c) for c in row) for row in enough), key=lambda c: (sum(c), c))
    chosen: list[Counts] = []
    for layer in range(replicas, 0, -1):
        for counts, row in sorted(times.items()):
            rest = tuple(a - b for a, b in zip(place, counts, strict=True))
            done = _done(row, step_s)
            if min(rest) < 0 or not done:
                continue
            if layers[layer - 1][rest] + done == layers[layer][place]:
                chosen.append(counts)
                place = rest
                break
    return sorted(chosen, reverse=True)
