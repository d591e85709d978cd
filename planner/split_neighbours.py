"""Splits of a chain that differ from one by a single block, and how long each is at least."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.interleaved_problem import ranges_of
from planner.problem import Array, Partition
from planner.split_layers import Builder
from planner.split_problem import SplitProblem

_EXACT = 1e-9  # relative; sums taken in another order differ by a few ulp


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A plan with the features of its ranks and the longest of its known paths."""

    partition: Partition
    features: tuple[Array, ...]
    bound_s: float


def measured(
    problem: SplitProblem,
    builder: Builder,
    weights: Sequence[Array],
    starts: tuple[int, ...],
    below: float,
) -> Measured | None:
    """A split with each rank's fastest strategies that fit; None where none do, or where a known
    path is no shorter than `below`. `weights` are the paths', rank by rank."""
    blocks = ranges_of(starts, problem.chain.num_blocks)
    features: list[Array] = []
    strategies: dict[int, tuple[int, ...]] = {}
    bound = np.zeros(weights[0].shape[1])
    for rank in range(problem.num_ranks):
        stages = problem.schedule.stages_of(rank)
        way = builder.alone(rank, tuple(blocks[stage] for stage in stages))
        if way is None:
            return None
        features.append(way.features)
        bound += way.features @ weights[rank]
        strategies.update(zip(stages, way.strategies, strict=True))
    if float(bound.max()) >= below * (1 - _EXACT):
        return None
    chosen = tuple(k for stage in sorted(strategies) for k in strategies[stage])
    return Measured(
        partition=Partition(starts=starts, strategies=chosen, step_time_s=0.0),
        features=tuple(features),
        bound_s=float(bound.max()),
    )


def neighbours(found: Partition) -> Iterator[tuple[int, ...]]:
    """Splits in which one stage gives a block to another: the cuts between them move by one.

    >>> list(neighbours(Partition(starts=(0, 2), strategies=(0, 0, 0), step_time_s=1.0)))
    [(0, 1)]
    """
    starts, ends = found.starts, found.ends()
    for giver, taker in itertools.permutations(range(len(starts)), 2):
        if ends[giver] - starts[giver] == 1:
            continue
        if giver < taker:
            yield tuple(at - (giver < s <= taker) for s, at in enumerate(starts))
        else:
            yield tuple(at + (taker < s <= giver) for s, at in enumerate(starts))
