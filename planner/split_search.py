"""The best partition for a schedule that splits the backward, with a proof: cutting planes.

Every plan's timeline is the longest of the paths through its actions, and every path bounds every
plan (planner/timeline_path.py). So plans are sought that are short on all paths known so far, their
timelines give new paths, and the plans that no known path rules out get fewer until none is left
(Kelley, J. SIAM 8(4), 1960; the timeline is the oracle, and the last word).

1. Dual: weights of the known paths whose mean is longest at its shortest over all plans, which is a
   shortest path through layers (planner/split_layers.py); a linear programme over the plans found
   gives the next weights. Every weighting is a lower bound on the step.
2. Sweep: rank by rank all partial plans that some completion might bring under the best plan, by
   every known path alone and by the dual's weightings. What is left at the end is run through the
   timeline, most promising first, each run a better plan or a path that rules out others.

Exact where the sweeps end with nothing left; where they are cut short (too many partial plans, or
timelines), the least bound of what was left out is the bound, and the rest is the gap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.layer_paths import completions, costs_of, least_worst, shortest, through
from planner.loop_layers import LoopBuilder
from planner.path_weighting import best_weighting
from planner.problem import Array, Partition
from planner.split_layers import Builder, LayerBuilder, Layers, only_through
from planner.split_neighbours import measured, neighbours
from planner.split_options import Index
from planner.split_problem import SplitProblem, split_durations, split_tails
from planner.timeline_path import PathFinder, TimelinePath
from planner.way_branching import Plans, branch

_FIRST_LIMIT = 1.15  # of the mean rank's seconds; only decides how much is looked at first
_WIDER = 1.5  # while nothing fits
_NARROWER = (1.08, 1.04, 1.02, 1.01, 1.005)  # where the first limit leaves too many ways
_DUAL_ROUNDS = 25
_DUAL_CLOSED = 1e-4  # relative, between the dual and its programme
_NARROWED = 0.9  # of the ways; narrowing goes on while it leaves fewer
_WEIGHTINGS = 6  # of the dual that the sweep asks, the strongest
_KEPT = (300, 1_000, 3_000, 10_000)  # partial plans of a rank, sweep by sweep
_EXPANDED = 1_000_000  # partial plans that are looked at at once
_ACTIONS = 4_000_000  # of all timelines of a cell
_EXACT = 1e-9  # relative; sums taken in another order differ by a few ulp


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The best partition found, its step time that of the timeline, or None; no plan takes less
    than `bound_s`, infinite where none fits."""

    partition: Partition | None
    bound_s: float

    @property
    def step_time_s(self) -> float:
        """Of the partition; infinite without one."""
        return self.partition.step_time_s if self.partition else np.inf


class Splitter:
    """Bound and best plan of one cell.

    builder  of the layers; None for that of the schedule;  actions  of all timelines, at most
    """

    def __init__(
        self, problem: SplitProblem, builder: Builder | None = None, *, actions: int = _ACTIONS
    ) -> None:
        self.problem = problem
        turns = problem.schedule.name == "interleaved"
        self._builder = builder or (LoopBuilder(problem) if turns else LayerBuilder(problem))
        self._finder = PathFinder(problem.schedule)
        self._paths: list[TimelinePath] = []
        self._keys: set[tuple[int, bytes]] = set()
        self._weights = [self._builder.weights(r, ()) for r in range(problem.num_ranks)]
        for rank in range(problem.num_ranks):
            self._add(self._finder.work_of(rank))
        self._steps: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
        self._best: Partition | None = None
        self._layers = Layers(layers=(), limit_s=0.0)
        self._weightings: list[tuple[float, Array]] = []
        self._asked_s = -np.inf  # plans under it are in the layers
        self._root_s = 0.0
        self._beyond_s = np.inf  # no plan that is not in the layers takes less
        self._actions_left = self._actions = actions

    @property
    def bound_s(self) -> float:
        """Seconds that no plan beats, without a full search; infinite where no plan fits."""
        return self.bound()

    def bound(self, below: float = np.inf) -> float:
        """The same as far as it matters to whoever wants a plan under `below`."""
        self._prepare(below)
        return min(self._root_s, self._best_s)

    def consider(self, found: Partition) -> None:
        """Runs a plan that fits, for its time and its longest path."""
        self._run(found)

    @property
    def known_s(self) -> float:
        """Seconds of the best plan so far; infinite before there is one."""
        return self._best_s

    @property
    def has_ways(self) -> bool:
        """Whether there are layers to search; not where they would be too large."""
        return bool(self._layers.layers)

    def any_plan(self) -> Partition | None:
        """A good plan that fits, without a full search; None where none fits."""
        self._prepare(np.inf)
        return self._best

    def best(self, below: float = np.inf, effort: float = 1.0) -> Split:
        """The best plan under `below` seconds, and what no plan of the cell beats (or `below`), in
        the share `effort` of the branches."""
        self._prepare(below)
        whole, upper, bound = self._layers, min(below, self._best_s), self._root_s
        for kept in _KEPT[: 1 + int(effort * (len(_KEPT) - 1))]:
            if bound >= upper * (1 - _EXACT) or not self._layers.layers:
                break
            bound = max(bound, min(self._narrow(upper), self._beyond_s, upper))
            if bound >= upper * (1 - _EXACT) or self._actions_left <= 0:
                break
            proved = min(self._sweep(upper, kept), self._beyond_s)
            upper = min(upper, self._best_s)
            bound = max(bound, min(proved, upper))
        if bound < upper * (1 - _EXACT) and self._layers.layers and self._actions_left > 0:
            proved = branch(self._layers, self._plans(), upper=upper, effort=effort)
            upper = min(upper, self._best_s)
            bound = max(bound, min(proved, self._beyond_s, upper))
        # Ways that are too long for `below` may do for another time.
        self._layers, self._root_s = whole, max(self._root_s, min(bound, upper))
        found = self._best if self._best_s <= upper else None
        return Split(
            partition=found, bound_s=max(upper, bound) if bound >= upper * (1 - _EXACT) else bound
        )

    @property
    def _best_s(self) -> float:
        return self._best.step_time_s if self._best else np.inf

    # Preparing: layers as wide as is needed, the dual, first plans.

    def _prepare(self, below: float) -> None:
        """Layers with all plans under `below` and under the best plan, and what bounds them."""
        if min(below, self._best_s) <= self._asked_s:
            return
        self._asked_s = below
        builder, micro = self._builder, self.problem.schedule.num_microbatches
        mean_s, widest_s = builder.mean_s(), builder.total_s() * (1 + _EXACT)
        first_s = _FIRST_LIMIT * mean_s
        limit_s, narrower = min(first_s, widest_s, below / micro), iter(_NARROWER)
        self._layers = Layers(layers=(), limit_s=0.0)
        while True:
            layers = builder.build(limit_s)
            # Plans that are not in the layers have a rank busier than the limit.
            if layers.too_many:
                factor = next(narrower, None)
                if self._layers.layers or factor is None:
                    self._root_s = min(max(self._root_s, mean_s * micro), self._beyond_s)
                    return
                limit_s = min(limit_s, factor * mean_s)
                continue
            self._layers = layers
            self._beyond_s = limit_s * micro if limit_s < widest_s else np.inf
            self._root_s = np.inf
            if layers.layers:
                self._dual()
                self._descend()
                upper = min(below, self._best_s)
                self._root_s = max(self._root_s, self._narrow(upper))
                if self._layers.layers:
                    self._sweep(upper, _KEPT[0])
                    self._descend()
            self._root_s = min(self._root_s, self._beyond_s)
            needed_s = min(min(self._best_s, below) / micro, widest_s)
            if limit_s >= needed_s * (1 - _EXACT):
                # Beyond the layers nothing is under the best plan, or under `below`.
                return
            limit_s = needed_s if layers.layers else min(needed_s, _WIDER * limit_s)

    def _dual(self) -> None:
        """Raises the root bound, and finds plans and paths on the way."""
        self._weightings = []
        plans: list[Index] = []
        seen: set[tuple[int, ...]] = set()
        weighting = np.full(len(self._paths), 1.0 / len(self._paths))
        root = 0.0
        for _ in range(_DUAL_ROUNDS):
            value, ways = shortest(self._layers.layers, self._weights, weighting)
            self._weightings.append((value, weighting))
            root = max(root, value)
            if tuple(ways) not in seen:
                seen.add(tuple(ways))
                plans.append(np.asarray(ways))
                self._run(self._builder.partition(self._layers, ways))
            lengths = np.stack([self._lengths_of(plan) for plan in plans])
            hoped, weighting = best_weighting(lengths)
            if hoped <= root * (1 + _DUAL_CLOSED) or root >= self._best_s * (1 - _EXACT):
                break
        self._root_s = root
        self._weightings.sort(key=lambda pair: -pair[0])
        del self._weightings[_WEIGHTINGS:]

    def _plans(self) -> Plans:
        """What branching over the layers asks for."""
        return Plans(
            weights=self._weights,
            run=lambda layers, ways: self._run(self._builder.partition(layers, ways)),
            best=lambda: self._best_s,
            room=lambda: self._actions_left > 0,
        )

    def _lengths_of(self, ways: Index) -> Array:
        """[paths] of a plan."""
        parts = [
            layer.features[way] @ weights
            for layer, way, weights in zip(self._layers.layers, ways, self._weights, strict=True)
        ]
        return np.asarray(np.sum(parts, axis=0))

    # Timelines.

    def _run(self, found: Partition) -> float:
        """The step of a plan by its timeline; its longest path is known from then on."""
        key = (found.starts, found.strategies)
        if key not in self._steps:
            durations = split_durations(self.problem, *key)
            longest = self._finder.longest(durations, split_tails(self.problem, found.starts))
            self._actions_left -= self._finder.num_actions
            self._steps[key] = longest.step_time_s
            self._add(longest.path)
            if longest.step_time_s < self._best_s:
                self._best = replace(found, step_time_s=longest.step_time_s)
        return self._steps[key]

    def _descend(self) -> None:
        """Moves single blocks of the best plan from stage to stage as long as that shortens it and
        half of the timelines are left. Plans that a known path rules out are not run."""
        improved = True
        while improved and self._best is not None:
            improved = False
            tried = [
                measured(self.problem, self._builder, self._weights, starts, self._best_s)
                for starts in neighbours(self._best)
            ]
            for other in sorted((m for m in tried if m is not None), key=lambda m: m.bound_s):
                before = self._best_s
                if self._actions_left < self._actions // 2:
                    return
                lengths = np.sum(
                    [f @ w for f, w in zip(other.features, self._weights, strict=True)], axis=0
                )
                if float(lengths.max()) < before * (1 - _EXACT) and (
                    self._run(other.partition) < before * (1 - _EXACT)
                ):
                    improved = True
                    break

    def _add(self, path: TimelinePath) -> None:
        if path.key in self._keys:
            return
        self._keys.add(path.key)
        self._paths.append(path)
        for rank in range(self.problem.num_ranks):
            column = self._builder.weights(rank, (path,))
            before = self._weights[rank]
            self._weights[rank] = np.hstack([before, column]) if before.size else column

    # Narrowing: ways that no plan under the best one takes.

    def _narrow(self, upper: float) -> float:
        """Leaves out ways through which every plan is too long; returns what no plan beats.

        Every plan is as long as the least through the worst of its ways: with whole blocks, that
        is what some rank must take, whoever it is.
        """
        while True:
            limit = upper * (1 - _EXACT)
            lengths = through(self._layers.layers, self._weights, self._asked())
            least = float(least_worst(self._layers.layers, lengths)[0][0])
            if least >= limit:
                self._layers = replace(self._layers, layers=())
                return upper
            before = sum(len(layer.target) for layer in self._layers.layers)
            kept = [length < limit for length in lengths]
            self._layers = replace(self._layers, layers=only_through(self._layers.layers, kept))
            if not self._layers.layers:
                return upper
            if sum(len(layer.target) for layer in self._layers.layers) > _NARROWED * before:
                return least

    def _asked(self) -> Array:
        """[paths, columns] what partial plans are measured by: the dual's weightings, which rule
        out most, then every path alone, the latest first."""
        count = len(self._paths)
        asked = np.zeros((count, len(self._weightings) + count))
        for column, (_, weighting) in enumerate(self._weightings):
            asked[: len(weighting), column] = weighting
        asked[:, len(self._weightings) :] = np.eye(count)[:, ::-1]
        return asked

    # The sweep.

    def _sweep(self, upper: float, kept: int) -> float:
        """Runs the plans that may be under `upper`; returns what no plan in the layers beats,
        `upper` where that is proved."""
        limit = min(upper, self._best_s) * (1 - _EXACT)
        asked = self._asked()
        rest = completions(self._layers.layers, self._weights, asked)
        lengths = through(self._layers.layers, self._weights, asked)
        worst = least_worst(self._layers.layers, lengths)
        strong = len(self._weightings)
        state = np.zeros(1, dtype=np.intp)
        spent = np.zeros((1, asked.shape[1]))
        trail = np.zeros((1, 0), dtype=np.intp)
        dropped = np.inf
        bound = np.zeros(1)
        for rank, layer in enumerate(self._layers.layers):
            cost = costs_of(layer, self._weights[rank], asked)
            number = layer.starts[state + 1] - layer.starts[state]
            if int(number.sum()) > _EXPANDED:
                fits = np.cumsum(number) <= _EXPANDED
                dropped = min(dropped, float(bound[~fits].min()))
                state, spent, trail, number = state[fits], spent[fits], trail[fits], number[fits]
            source = np.repeat(np.arange(state.size), number)
            way = np.arange(source.size) - np.repeat(np.cumsum(number) - number, number)
            way += layer.starts[state][source]
            to = rest[rank + 1]
            quick = spent[source, :strong] + cost[way, :strong] + to[layer.target[way], :strong]
            above = np.maximum(quick.max(axis=1, initial=0.0), worst[rank + 1][layer.target[way]])
            alive = np.flatnonzero(above < limit)
            source, way, above = source[alive], way[alive], above[alive]
            after = spent[source] + cost[way]
            bound = np.maximum(above, (after + to[layer.target[way]]).max(axis=1))
            order = np.argsort(bound, kind="stable")
            order = order[bound[order] < limit]
            if order.size > kept:
                dropped = min(dropped, float(bound[order[kept]]))
                order = order[:kept]
            state, spent, bound = layer.target[way[order]], after[order], bound[order]
            trail = np.column_stack([trail[source[order]], way[order]])
            if not order.size:
                return min(dropped, upper)
        return min(dropped, self._run_all(trail, bound, upper))

    def _run_all(self, trails: Index, bounds: Array, upper: float) -> float:
        """Runs complete plans until the rest is ruled out; returns what none of them beats."""
        bounds = bounds.copy()
        left = np.ones(len(bounds), dtype=bool)
        while True:
            limit = min(upper, self._best_s) * (1 - _EXACT)
            left &= bounds < limit
            if not left.any():
                return min(upper, self._best_s)
            if self._actions_left <= 0:
                return float(bounds[left].min())
            at = np.flatnonzero(left)[int(np.argmin(bounds[left]))]
            count = len(self._paths)
            step = self._run(self._builder.partition(self._layers, trails[at].tolist()))
            bounds[at] = max(bounds[at], step)
            left[at] = False
            if len(self._paths) > count:
                rows = np.flatnonzero(left)
                lengths = np.zeros(rows.size)
                for rank, layer in enumerate(self._layers.layers):
                    features = layer.features[trails[rows, rank]]
                    lengths += features @ self._weights[rank][:, -1]
                bounds[rows] = np.maximum(bounds[rows], lengths)
