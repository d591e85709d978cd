"""Branch and bound over the ways of the ranks: what a mean of paths alone does not prove.

The dual of planner/split_search.py bounds every mixture of plans, in which a rank may take half of
a block more in one turn and half in another. Here such a mixture is taken apart: of the ranks whose
stages differ most between the plans that the dual mixes, one stage is asked to be short in one
branch and long in the other, and each branch has a dual of its own (Land and Doig, Econometrica
28(3), 1960, over the columns of Kelley's programme). Ways through which no plan of a branch is
under the best one are left out of it. Every plan that a dual finds is run through the timeline.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.layer_paths import least_worst, shortest, through
from planner.path_weighting import best_weighting
from planner.problem import Array
from planner.split_layers import Layers, only_through
from planner.timeline_path import COLUMNS

_WORK = 400_000  # ways in all branches that are looked at,
_OF_ONE = 100  # and as many of each branch beside its own: what its programme takes
_ROUNDS = 20  # of a branch's dual
_CLOSED = 1e-4  # relative, between a dual and its programme
_EXACT = 1e-9  # relative
_ACTIVE = 1e-6  # relative; plans so near the shortest are those that the dual mixes
_PLANS = 40  # of a branch's programme; the shortest are kept
_SINGLE = 1e-6  # relative; stages that differ by less are equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """What is known of the branching's plans.

    weights  per rank [features, paths], growing with the paths known
    run      the seconds of a plan: one way of each rank of the layers given. Its longest path is
             in `weights` from then on
    best     seconds of the best plan so far
    room     whether more may be run
    """

    weights: list[Array]
    run: Callable[[Layers, list[int]], float]
    best: Callable[[], float]
    room: Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Branch:
    """Layers with what is known of their plans: features [ranks][5 v + 1] of some of them, and a
    weighting of the paths."""

    layers: Layers
    plans: tuple[tuple[Array, ...], ...]
    weighting: Array
    bound_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """Plans under and above so many seconds of a rank's stage."""

    rank: int
    columns: Array
    threshold: float

    def short(self, features: Array) -> Array:
        """Whether each row of features is under it."""
        return np.asarray(features @ self.columns <= self.threshold)


def branch(layers: Layers, known: Plans, *, upper: float, effort: float = 1.0) -> float:
    """Seconds that no plan of the layers beats, `upper` where none is under it: all of them, or
    as many branches as are looked at; `effort` is the share of those."""
    nodes = int(effort * _WORK) // (sum(len(layer.target) for layer in layers.layers) + _OF_ONE)
    count = known.weights[0].shape[1]
    root = _Branch(layers=layers, plans=(), weighting=np.full(count, 1.0 / count), bound_s=0.0)
    heap: list[tuple[float, int, _Branch]] = []
    made = 0

    def push(node: _Branch) -> None:
        nonlocal made
        solved = _solve(node, known, min(upper, known.best()) * (1 - _EXACT))
        if solved is not None:
            made += 1
            heapq.heappush(heap, (solved.bound_s, made, solved))

    push(root)
    while heap:
        limit = min(upper, known.best()) * (1 - _EXACT)
        bound, _, node = heap[0]
        if bound >= limit:
            return min(upper, known.best())
        if made >= nodes or not known.room():
            return bound
        heapq.heappop(heap)
        split = _split_of(node, known.weights)
        if split is None:
            # One plan alone, and its timeline is no longer than what is known of it.
            return bound
        for short in (True, False):
            child = _child(node, split, short=short)
            if child is not None:
                push(child)
    return min(upper, known.best())


def _solve(node: _Branch, known: Plans, limit: float) -> _Branch | None:
    """The branch with its dual's bound and without ways that are too long; None where nothing is
    left under the limit."""
    layers, plans, weighting = node.layers, list(node.plans), node.weighting
    bound, tried = node.bound_s, [weighting]
    for _ in range(_ROUNDS):
        value, ways = shortest(layers.layers, known.weights, weighting)
        bound = max(bound, value)
        if bound >= limit:
            return None
        row = tuple(layer.features[way] for layer, way in zip(layers.layers, ways, strict=True))
        new = not any(all(map(np.array_equal, row, other)) for other in plans)
        if new:
            plans.append(row)
            if float(_lengths([row], known.weights).max()) < limit and known.room():
                limit = min(limit, known.run(layers, ways) * (1 - _EXACT))
        lengths = _lengths(plans, known.weights)
        if len(plans) > _PLANS:
            kept = np.sort(np.argsort(lengths.max(axis=1), kind="stable")[:_PLANS])
            plans, lengths = [plans[at] for at in kept], lengths[kept]
        hoped, weighting = best_weighting(lengths)
        tried.append(weighting)
        if hoped <= bound * (1 + _CLOSED) or not new:
            break
    asked = np.zeros((known.weights[0].shape[1], min(3, len(tried))))
    for column, used in enumerate(tried[-3:]):
        asked[: len(used), column] = used
    lengths_through = through(layers.layers, known.weights, asked)
    bound = max(bound, float(least_worst(layers.layers, lengths_through)[0][0]))
    if bound >= limit:
        return None
    left = only_through(layers.layers, [length < limit for length in lengths_through])
    if not left:
        return None
    return _Branch(
        layers=replace(layers, layers=left),
        plans=tuple(plans),
        weighting=weighting,
        bound_s=bound,
    )


def _lengths(plans: Sequence[tuple[Array, ...]], weights: Sequence[Array]) -> Array:
    """[plans, paths]"""
    parts = [
        np.stack([plan[rank] for plan in plans]) @ weight for rank, weight in enumerate(weights)
    ]
    return np.asarray(np.sum(parts, axis=0))


def _split_of(node: _Branch, weights: Sequence[Array]) -> _Split | None:
    """The stage that differs most between the plans that the dual mixes; between all that are left
    where those are alike; None where all are."""
    lengths = _lengths(node.plans, weights)[:, : len(node.weighting)] @ node.weighting
    near = np.flatnonzero(lengths <= lengths.min() * (1 + _ACTIVE))
    mixed = [np.stack([node.plans[at][rank] for at in near]) for rank in range(len(weights))]
    return _widest(mixed) or _widest([layer.features for layer in node.layers.layers])


def _widest(features: Sequence[Array]) -> _Split | None:
    found: _Split | None = None
    widest = 0.0
    for rank, rows in enumerate(features):
        for columns in _stage_columns(rows.shape[1]):
            seconds = rows @ columns
            low, high = float(seconds.min()), float(seconds.max())
            if high - low > max(widest, _SINGLE * high):
                widest = high - low
                found = _Split(rank=rank, columns=columns, threshold=(low + high) / 2)
    return found


def _stage_columns(count: int) -> list[Array]:
    """Per stage the columns of features that sum to its seconds: F, I and W."""
    found = []
    for begin in range(0, count - 1, COLUMNS):
        columns = np.zeros(count)
        columns[begin : begin + 3] = 1.0
        found.append(columns)
    return found


def _child(node: _Branch, split: _Split, *, short: bool) -> _Branch | None:
    kept = [np.ones(len(layer.target), dtype=bool) for layer in node.layers.layers]
    kept[split.rank] = split.short(node.layers.layers[split.rank].features) == short
    left = only_through(node.layers.layers, kept)
    if not left:
        return None
    plans = tuple(p for p in node.plans if bool(split.short(p[split.rank][None])[0]) == short)
    return replace(node, layers=replace(node.layers, layers=left), plans=plans)
