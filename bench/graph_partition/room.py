"""What a ceiling on the load leaves to the devices before and after each ideal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.compiled import compiled
from bench.graph_partition.figures import Figures
from bench.graph_partition.ideals import Ideals

_SLACK = 1e-9  # relative; only ever leaves more states open


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Limits that hold for every split under a ceiling, by each of a few measures of a block.

    A measure is a weight of every block, and the most that one accelerator and one host can hold of
    it.

    most             [ideals, hosts + 1]: the most accelerators an ideal may have used, so many
                     hosts used; -1 where it cannot be reached or completed
    by_accelerator   [measures, ideals]: the most of the measure that the devices before the last
                     one hold of the ideal, the last one an accelerator; -inf where it cannot be one
    by_host          the same where the last one is a host
    needed           [measures, blocks]: the measure of each block and of all that must come before
                     it
    """

    most: NDArray[np.int32]
    by_accelerator: NDArray[np.float64]
    by_host: NDArray[np.float64]
    needed: NDArray[np.float64]


def room_under(figures: Figures, ideals: Ideals, ceiling: float) -> Room:
    """The room under a ceiling in seconds."""
    used = np.arange(figures.hosts + 1)
    most = np.full((ideals.count, figures.hosts + 1), figures.accelerators, dtype=np.int64)
    measures = _measures(figures, ceiling)
    sums = []
    for weights, per_accelerator, per_host in measures:
        held = np.zeros(ideals.count)
        _sum_over(ideals.first, ideals.block, ideals.smaller, weights, held)
        sums.append(held)
        slack = _SLACK * float(held[-1])
        left = held[-1] - held[:, None] - (figures.hosts - used) * per_host - slack
        if per_accelerator > 0:
            needed = np.ceil(np.maximum(left, 0.0) / per_accelerator)
        else:
            needed = np.where(left > 0, np.inf, 0.0)
        most = np.minimum(most, figures.accelerators - np.minimum(needed, figures.accelerators + 1))
    by_accelerator, by_host = [], []
    for held, (_, per_accelerator, per_host) in zip(sums, measures, strict=True):
        reach = most * per_accelerator + used * per_host + _SLACK * float(held[-1])
        most = np.where((most < 0) | (held[:, None] > reach), -1, most)
    for held, (_, per_accelerator, per_host) in zip(sums, measures, strict=True):
        reach = most * per_accelerator + used * per_host + _SLACK * float(held[-1])
        no_accelerator, no_host = most < 1, (most < 0) | (used == 0)
        by_accelerator.append(
            np.where(no_accelerator, -np.inf, reach - per_accelerator).max(axis=1)
        )
        by_host.append(np.where(no_host, -np.inf, reach - per_host).max(axis=1))
    return Room(
        most=most.astype(np.int32),
        by_accelerator=np.array(by_accelerator),
        by_host=np.array(by_host),
        needed=_needed(figures, [weights for weights, _, _ in measures]),
    )


def _measures(figures: Figures, ceiling: float) -> list[tuple[NDArray[np.float64], float, float]]:
    """(weights, most on an accelerator, most on a host): work; memory and a mix where it binds.

    Blocks that only a host can hold weigh nothing. A host holds `ceiling` of its own seconds, so at
    most `ceiling` x the largest weight a host second.
    """
    free = figures.on_accelerator & (figures.memory_bytes <= figures.capacity_bytes)
    work = np.where(free, figures.accelerator_s, 0.0)
    memory = np.where(free, figures.memory_bytes, 0.0)
    found = [(work, ceiling)]
    if 0 < figures.capacity_bytes < memory.sum() and ceiling > 0:
        found.append((memory, figures.capacity_bytes))
        found.append((work / ceiling + memory / figures.capacity_bytes, 2.0))
    measures = []
    for weights, per_accelerator in found:
        counts = weights > 0
        with np.errstate(divide="ignore"):
            rate = float(np.max(weights[counts] / figures.host_s[counts], initial=0.0))
        total = float(weights.sum())
        per_host = min(total, ceiling * rate) if np.isfinite(rate) else total
        measures.append((weights, min(per_accelerator, total), per_host))
    return measures


def _needed(figures: Figures, weights: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    before = [{b} for b in range(figures.count)]
    for first, later in figures.pairs[np.argsort(figures.pairs[:, 1], kind="stable")]:
        before[later] |= before[first]
    lists = [sorted(part) for part in before]
    return np.array([[of[part].sum() for part in lists] for of in weights])


@compiled
def _sum_over(
    first: NDArray[np.int64],
    block: NDArray[np.int32],
    smaller: NDArray[np.int32],
    weights: NDArray[np.float64],
    sums: NDArray[np.float64],
) -> None:
    for i in range(1, len(sums)):
        sums[i] = sums[smaller[first[i]]] + weights[block[first[i]]]
