"""All ways to give the ranks of a split schedule their blocks, as a graph in layers.

Rank r of a V holds stages r and 2p - 1 - r: from the outside in, each rank takes blocks from the
left and from the right end of what is left, and the last one the rest, cut in two. With one stage
per rank, ranks take from the left alone. So what is left, blocks [i, j), is all that the ranks
still to come need to know: states (i, j) between the ranks, ways of a rank from state to state.

A way is known by its features: seconds of F, I, W of each of the rank's stages, of the sends over
the cut before each, and of the rank's tail. A path through the schedule's actions
(planner/timeline_path.py) is a weighted sum of all ranks' features, so that the least of a path, or
of a mean of several, over all plans is a shortest path through the layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from planner.partition import range_numbers
from planner.problem import Array, Partition
from planner.split_options import Index, SplitOptions
from planner.split_problem import SplitProblem
from planner.timeline_path import COLUMNS, TimelinePath

_MOST_WAYS = 2_000_000  # of all ranks together; beyond it a cell is left to its other bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The ways of one rank.

    starts      [states + 1] ways of each state before the rank: starts[s] to starts[s + 1]
    target      [ways] state behind it
    features    [ways, 5 v + 1]
    blocks      [ways, 4] i, y, x, j: it takes [i, y) and [x, j); of v stages in turn [ways, 2 v]
    label       [ways, v] of the strategies in each stage
    """

    starts: Index
    target: Index
    features: Array
    blocks: Index
    label: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The layers of a problem with no rank busier than `limit_s` per micro-batch.

    Empty where no plan fits; `too_many` where they were not built.
    """

    layers: tuple[Layer, ...]
    limit_s: float
    too_many: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWay:
    """Features [5 v + 1] of a rank's way on its own, and the strategies of each stage's blocks."""

    features: Array
    strategies: tuple[tuple[int, ...], ...]


class Builder(Protocol):
    """What the search asks of whoever builds the layers of a problem."""

    def mean_s(self) -> float:
        """Seconds per micro-batch that every plan's busiest rank takes at least."""

    def total_s(self) -> float:
        """Seconds per micro-batch beyond which no plan is left out."""

    def build(self, limit_s: float) -> Layers:
        """The layers of all plans that may be under `limit_s` per micro-batch."""

    def alone(self, rank: int, ranges: tuple[tuple[int, int], ...]) -> RankWay | None:
        """The rank's way with these ranges that takes least in all; None where none fits."""

    def weights(self, rank: int, paths: Sequence[TimelinePath]) -> Array:
        """[5 v + 1, paths] how much each feature of the rank counts in each path."""

    def partition(self, layers: Layers, ways: Sequence[int]) -> Partition:
        """The partition of one way per rank, without its step time."""


class LayerBuilder:
    """Builds the layers of a problem; the choices of ranks are kept from one limit to the next."""

    def __init__(self, problem: SplitProblem) -> None:
        self.problem = problem
        self.options = SplitOptions(problem)
        chain = problem.chain
        self._alone: dict[tuple[int, tuple[tuple[int, int], ...]], RankWay | None] = {}
        self._numbers = range_numbers(chain.kinds)
        self._forward = [_before(costs.forward_s) for costs in chain.costs]
        self._weight = [_before(seconds) for seconds in problem.weight_s]
        self._fastest = [
            _before(costs.forward_s + costs.backward_s.min(axis=1)) for costs in chain.costs
        ]
        self._least = np.min([np.diff(row) for row in self._fastest], axis=0)
        self._least_before = np.concatenate([[0.0], np.cumsum(self._least)])

    def mean_s(self) -> float:
        """Seconds per micro-batch of a rank, on average and at least."""
        mean = float(self._least_before[-1]) / self.problem.num_ranks
        return max(mean, float(self._least.max()))

    def total_s(self) -> float:
        """Seconds per micro-batch of all blocks on the slowest devices: no rank takes more unless
        it computes again."""
        return float(max(row[-1] for row in self._fastest))

    def build(self, limit_s: float) -> Layers:
        """The layers of plans in which no rank takes longer than `limit_s` per micro-batch with its
        blocks at their fastest."""
        n, p = self.problem.chain.num_blocks, self.problem.num_ranks
        states = np.asarray([[0, n]])
        layers: list[Layer] = []
        room = _MOST_WAYS
        for rank in range(p):
            states_before = states
            ways = self._ways(rank, states, limit_s, room)
            if ways is None:
                return Layers(layers=(), limit_s=limit_s, too_many=True)
            source, blocks = ways
            layer, states = self._layer(rank, len(states_before), source, blocks)
            if not len(layer.target):
                return Layers(layers=(), limit_s=limit_s)
            room -= len(layer.target)
            layers.append(layer)
        return Layers(layers=only_through(layers), limit_s=limit_s)

    def _ways(
        self, rank: int, states: Index, limit_s: float, room: int
    ) -> tuple[Index, Index] | None:
        """State and blocks of every way within the limit that leaves enough for the ranks to come;
        None where there are too many."""
        problem, two = self.problem, self.problem.per_rank == 2
        after = problem.num_ranks - 1 - rank
        at = self._costs(rank)
        sources, found, number = [], [], 0
        for state, (i, j) in enumerate(states.tolist()):
            spent = self._fastest[at[0]][i + 1 : j + 1] - self._fastest[at[0]][i]
            most = int(np.searchsorted(spent, limit_s * (1 + 1e-9), side="right"))
            ys = np.arange(i + 1, i + 1 + most)
            if not two:
                xs = np.full(ys.size, j)
                if not after:
                    ys, xs = ys[ys == j], xs[: int((ys == j).any())]
            elif not after:
                xs = ys = ys[ys < j]
            else:
                xs = np.arange(i + 2, j)
                ys, xs = (part.ravel() for part in np.meshgrid(ys, xs, indexing="ij"))
            left = self._least_before[xs] - self._least_before[ys]
            ok = (xs - ys >= problem.per_rank * after) & (left <= after * limit_s * (1 + 1e-9))
            if two:
                own = self._fastest[at[0]][ys] - self._fastest[at[0]][i]
                own = own + self._fastest[at[1]][j] - self._fastest[at[1]][xs]
                ok &= own <= limit_s * (1 + 1e-9)
            ys, xs = ys[ok], xs[ok]
            sources.append(np.full(ys.size, state))
            found.append(np.column_stack([np.full(ys.size, i), ys, xs, np.full(ys.size, j)]))
            number += ys.size
            if number > room:
                return None
        return np.concatenate(sources), np.concatenate(found)

    def _costs(self, rank: int) -> list[int]:
        chain = self.problem.chain
        return [chain.slots[stage].costs for stage in self.problem.schedule.stages_of(rank)]

    def _layer(
        self, rank: int, num_states: int, source: Index, blocks: Index
    ) -> tuple[Layer, Index]:
        """The layer of these ways, each once per choice of strategies, and the states behind it."""
        v = self.problem.per_rank
        number = self._numbers[blocks[:, 0], blocks[:, 1]] * (self._numbers.max() + 1)
        if v == 2:
            number = number + self._numbers[blocks[:, 2], blocks[:, 3]]
        _, first, alike = np.unique(number, return_index=True, return_inverse=True)
        ranges = [_ranges(blocks[at], v) for at in first.tolist()]
        options = [self.options.of(rank, blocks_) for blocks_ in ranges]
        tails = np.asarray([self.problem.held.tail_s(rank, blocks_) for blocks_ in ranges])
        counts = np.asarray([len(option.label) for option in options], dtype=np.intp)
        begin = np.cumsum(counts) - counts
        alike = alike.ravel()
        way = np.repeat(np.arange(len(source)), counts[alike])
        within = np.arange(way.size) - np.repeat(
            np.cumsum(counts[alike]) - counts[alike], counts[alike]
        )
        choice = begin[alike[way]] + within
        seconds = np.concatenate([option.seconds for option in options]) if options else None
        label = np.concatenate([option.label for option in options]) if options else None
        if seconds is None or label is None or not way.size:
            return _no_layer(num_states, v), np.zeros((0, 2), dtype=np.intp)
        blocks, source = blocks[way], source[way]
        features = self._features(rank, blocks, seconds[choice], tails[alike[way]])
        states, target = np.unique(blocks[:, 1:3], axis=0, return_inverse=True)
        order = np.argsort(source, kind="stable")
        layer = Layer(
            starts=np.searchsorted(source[order], np.arange(num_states + 1)),
            target=target.ravel()[order],
            features=features[order],
            blocks=blocks[order],
            label=label[choice][order],
        )
        return layer, states

    def _features(self, rank: int, blocks: Index, seconds: Array, tails: Array) -> Array:
        chain = self.problem.chain
        columns = []
        for turn, stage in enumerate(self.problem.schedule.stages_of(rank)):
            start, end = blocks[:, 2 * turn], blocks[:, 2 * turn + 1]
            index = chain.slots[stage].costs
            columns += [
                self._forward[index][end] - self._forward[index][start],
                seconds[:, turn],
                self._weight[index][end] - self._weight[index][start],
                chain.send_forward_s[stage, start],
                chain.send_backward_s[stage, start],
            ]
        return np.column_stack([*columns, tails])

    def alone(self, rank: int, ranges: tuple[tuple[int, int], ...]) -> RankWay | None:
        """The rank's way with these ranges that takes least in all; None where none fits."""
        if (rank, ranges) not in self._alone:
            options = self.options.of(rank, ranges)
            found = None
            if len(options.label):
                at = int(options.seconds.sum(axis=1).argmin())
                blocks = np.asarray([[*ranges[0], *ranges[-1]]])
                tail = np.asarray([self.problem.held.tail_s(rank, ranges)])
                features = self._features(rank, blocks, options.seconds[at : at + 1], tail)
                chosen = self.options.strategies(rank, ranges, options.label[at])
                found = RankWay(features=features[0], strategies=chosen)
            self._alone[rank, ranges] = found
        return self._alone[rank, ranges]

    def weights(self, rank: int, paths: Sequence[TimelinePath]) -> Array:
        """[5 v + 1, paths] how much each feature of the rank counts in each path."""
        return path_weights(self.problem, rank, paths)

    def partition(self, layers: Layers, ways: Sequence[int]) -> Partition:
        """The partition of one way per rank, without its step time."""
        starts: dict[int, int] = {}
        strategies: dict[int, tuple[int, ...]] = {}
        for rank, (layer, way) in enumerate(zip(layers.layers, ways, strict=True)):
            stages = self.problem.schedule.stages_of(rank)
            ranges = _ranges(layer.blocks[way], len(stages))
            chosen = self.options.strategies(rank, ranges, layer.label[way])
            starts.update(zip(stages, (i for i, _ in ranges), strict=True))
            strategies.update(zip(stages, chosen, strict=True))
        return Partition(
            starts=tuple(starts[stage] for stage in sorted(starts)),
            strategies=tuple(k for stage in sorted(strategies) for k in strategies[stage]),
            step_time_s=0.0,
        )


def path_weights(problem: SplitProblem, rank: int, paths: Sequence[TimelinePath]) -> Array:
    """[5 v + 1, paths] how much each feature of a rank counts in each path."""
    stages = problem.schedule.stages_of(rank)
    rows = [
        [*(path.counts[list(stages)].reshape(len(stages) * COLUMNS)), path.rank == rank]
        for path in paths
    ]
    return np.asarray(rows, dtype=float).T


def _before(values: Array) -> Array:
    return np.concatenate([[0.0], np.cumsum(values)])


def _ranges(blocks: Index, per_rank: int) -> tuple[tuple[int, int], ...]:
    i, y, x, j = (int(block) for block in blocks)
    return ((i, y), (x, j))[:per_rank]


def _no_layer(num_states: int, per_rank: int) -> Layer:
    return Layer(
        starts=np.zeros(num_states + 1, dtype=np.intp),
        target=np.zeros(0, dtype=np.intp),
        features=np.zeros((0, COLUMNS * per_rank + 1)),
        blocks=np.zeros((0, 4), dtype=np.intp),
        label=np.zeros((0, per_rank), dtype=np.intp),
    )


def only_through(
    layers: Sequence[Layer], kept: Sequence[npt.NDArray[np.bool_]] | None = None
) -> tuple[Layer, ...]:
    """The layers without ways from which the end is not reached, or that are not reached; empty
    where none is left.

    kept  [ways] of each layer, False for those to leave out
    """
    reached = np.ones(1, dtype=bool)
    alive = []
    for position, layer in enumerate(layers):
        ways = np.repeat(reached, np.diff(layer.starts))
        if kept is not None:
            ways &= kept[position]
        alive.append(ways)
        count = int(layer.target.max()) + 1 if position == len(layers) - 1 else 0
        count = count or len(layers[position + 1].starts) - 1
        reached = np.zeros(count, dtype=bool)
        reached[layer.target[ways]] = True
    ends = reached
    found: list[Layer] = []
    for layer, ways in zip(reversed(layers), reversed(alive), strict=True):
        ways = ways & ends[layer.target]
        if not ways.any():
            return ()
        number = np.cumsum(ends) - 1
        source = np.repeat(np.arange(len(layer.starts) - 1), np.diff(layer.starts))[ways]
        sources, again = np.unique(source, return_inverse=True)
        found.append(
            Layer(
                starts=np.searchsorted(again.ravel(), np.arange(len(sources) + 1)),
                target=number[layer.target[ways]],
                features=layer.features[ways],
                blocks=layer.blocks[ways],
                label=layer.label[ways],
            )
        )
        ends = np.zeros(len(layer.starts) - 1, dtype=bool)
        ends[sources] = True
    return tuple(reversed(found))
