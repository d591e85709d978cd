"""All near-even ways to give interleaved ranks their blocks, as a graph in layers.

Rank r of p holds stages r, p + r, 2 p + r, ..., each of n blocks or of one more
(planner/interleaved_problem.py): a way of a rank says which of its stages are the longer ones, and
under which strategies their blocks run. Where the blocks between the chain's ends are equal, what a
stage holds does not depend on where it begins, and all that the ranks still to come need to know is
how many longer stages there were so far. Elsewhere a state holds, for every turn, how many of the
stages before were longer, and how many were before the turn began.

Features, layers and what is done with them are those of planner/split_layers.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.interleaved_problem import starts_of
from planner.loop_options import LoopOptions, Ranges
from planner.problem import Array, Partition
from planner.rank_blocks import RankBlocks, ends_of
from planner.rank_fill import least_seconds
from planner.split_layers import Layer, Layers, RankWay, only_through, path_weights
from planner.split_options import Index, RankOptions
from planner.split_problem import SplitProblem
from planner.timeline_path import COLUMNS, TimelinePath

_MOST_WAYS = 60_000  # of all ranks together; beyond it a cell is left to its other bounds
_EXACT = 1e-9  # relative
_MOST_STEPS = 60_000  # from a state to the next, before strategies

State = tuple[int, ...]
Longer = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """What a rank may do with given ranges of blocks: features [K, 5 v + 1], label [K, v]."""

    ranges: Ranges
    features: Array
    label: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """Steps from states to states: which state, which choice, which state behind it."""

    source: list[int]
    choice: list[int]
    target: list[State]


class LoopBuilder:
    """Builds the layers of an interleaved problem, as LayerBuilder those of others.

    least_s  seconds that no plan of the problem is known to beat
    """

    def __init__(self, problem: SplitProblem, *, least_s: float = 0.0) -> None:
        self.problem, self.least_s = problem, least_s
        self.options = LoopOptions(problem)
        self.ends = ends_of(problem.held) if _alike_everywhere(problem) else None
        self.equal = self.ends is not None
        self._least = problem.held.least_blocks
        self._near_even = {0, 1} if problem.held.num_extras else {0}
        self._stages = [problem.held.stages_of(rank) for rank in range(problem.num_ranks)]
        self._limits: list[float] = [0.0] * problem.num_ranks
        self._alone: dict[tuple[int, ...], RankWay | None] = {}
        self._least_s: dict[tuple[int, int], float] = {}
        self._most = [0] * problem.num_ranks
        self._before_s = self._on_the_way()

    def mean_s(self) -> float:
        """Seconds per micro-batch of the step at least."""
        fastest = np.min(
            [c.forward_s + c.backward_s.min(axis=1) for c in self.problem.chain.costs], axis=0
        )
        micro = self.problem.schedule.num_microbatches
        return max(float(fastest.sum()) / self.problem.num_ranks, self.least_s / micro)

    def total_s(self) -> float:
        """Seconds per micro-batch that no plan's ranks exceed, with what is on the way to them."""
        slowest = np.max(
            [c.forward_s + c.backward_s.max(axis=1) for c in self.problem.chain.costs], axis=0
        )
        micro = self.problem.schedule.num_microbatches
        return float(slowest.sum()) + max(self._before_s) / micro

    def build(self, limit_s: float) -> Layers:
        """The layers of plans in which no rank's work, with the way to it and back from it, takes
        longer than `limit_s` per micro-batch."""
        problem = self.problem
        micro = problem.schedule.num_microbatches
        too_many = Layers(layers=(), limit_s=limit_s, too_many=True)
        states: list[State] = [()]
        layers: list[Layer] = []
        room = _MOST_WAYS
        self._alone.clear()
        for rank in range(problem.num_ranks):
            self._limits[rank] = limit_s - self._before_s[rank] / micro
        self._most = [self._most_extras(rank) for rank in range(problem.num_ranks)]
        for rank in range(problem.num_ranks):
            choices: dict[Ranges, _Choice | None] = {}
            steps = self._steps(rank, states, choices)
            if steps is None:
                return too_many
            if not steps.source:
                return Layers(layers=(), limit_s=limit_s)
            layer, states = self._layer(len(states), steps, [c for c in choices.values() if c])
            room -= len(layer.target)
            if room < 0:
                return too_many
            layers.append(layer)
        return Layers(layers=only_through(layers), limit_s=limit_s)

    def _on_the_way(self) -> list[float]:
        """Per rank seconds of a step beside the rank's own work, at least: micro-batch 0 comes down
        to it and the last one goes up from it to rank 0 and its tail; between, micro-batch 0 goes
        on to the end and back, which takes longer than the forwards that the rank runs meanwhile
        (the second of the paths of planner/interleave.py)."""
        problem, p = self.problem, self.problem.num_ranks
        held, last = problem.held, problem.num_ranks * (problem.per_rank - 1)
        tail_s = 0.0
        if self.equal:
            smallest = tuple(held.example(s, held.least_blocks) for s in held.stages_of(0))
            tail_s = held.tail_s(0, smallest)
        down = np.cumsum([tail_s, *map(self._passed_s, range(p - 1))])
        back = np.cumsum([0.0, *(self._passed_s(last + rank) for rank in range(p - 1, 0, -1))])
        found = []
        for rank in range(p):
            beyond = float(back[p - 1 - rank])
            meanwhile = 2 * (p - 1 - rank) * self._longest_forward_s(rank)
            found.append(float(down[rank]) + max(0.0, beyond - meanwhile))
        return found

    def _passed_s(self, stage: int) -> float:
        """Seconds of a micro-batch down and up through a stage and one cut beside it, at least."""
        chain = self.problem.chain
        n = self.problem.held.least_blocks
        costs = chain.costs[chain.slots[stage].costs]
        before = np.concatenate([[0.0], np.cumsum(costs.forward_s + costs.backward_s.min(axis=1))])
        windows = before[n:] - before[:-n]
        cuts = [cut for cut in (stage, stage + 1) if 0 < cut < chain.num_stages]
        sends = min(
            float((chain.send_forward_s[cut] + chain.send_backward_s[cut])[1:].min())
            for cut in cuts
        )
        return float(windows[stage * n : stage * (n + 1) + 1].min()) + sends

    def _longest_forward_s(self, rank: int) -> float:
        """Forward seconds of the longest of a rank's stages, at most."""
        held, longest = self.problem.held, 0.0
        n = held.least_blocks
        size = n + (held.num_extras > 0)
        for stage in held.stages_of(rank):
            seconds = held.longest_forward_s[held.chain.slots[stage].costs]
            before = np.concatenate([[0.0], np.cumsum(seconds)])
            windows = before[size:] - before[:-size]
            longest = max(longest, float(windows[stage * n : stage * (n + 1) + 1].max()))
        return longest

    def _most_extras(self, rank: int) -> int:
        """Longer stages that a rank may have within its limit and its memory, at most (-1 where it
        can hold none)."""
        held = self.problem.held
        most = min(held.per_rank, held.num_extras)
        if self.ends is None:
            return most
        blocks = RankBlocks(held, self.ends, rank)
        found = -1
        for extras in range(most + 1):
            known = self._least_s.get((rank, extras))
            if known is None:
                known = float(least_seconds([blocks], extras)[0])
                self._least_s[rank, extras] = known
            if known <= self._limits[rank] * (1 + _EXACT):
                found = extras
        return found

    # Steps from state to state.

    def _steps(
        self, rank: int, states: list[State], choices: dict[Ranges, _Choice | None]
    ) -> _Steps | None:
        """Every step of a rank that fits within its limit; None where there are too many. Choices
        are numbered in the order in which they come, those without ways left out."""
        found = _Steps(source=[], choice=[], target=[])
        numbers: dict[Ranges, int] = {}
        counts: list[int] = []
        ways = 0
        for source, state in enumerate(states):
            for longer, begins, target in self._next(rank, state):
                ranges = self._ranges(rank, begins, longer)
                if ranges not in choices:
                    options = self.options.of(rank, ranges, self._limits[rank])
                    if options is None:
                        return None
                    some = len(options.label) > 0
                    choices[ranges] = self._priced(rank, ranges, options) if some else None
                    if some:
                        numbers[ranges] = len(numbers)
                        counts.append(len(options.label))
                if ranges in numbers:
                    found.source.append(source)
                    found.choice.append(numbers[ranges])
                    found.target.append(target)
                    ways += counts[numbers[ranges]]
                if len(found.source) > _MOST_STEPS or ways > _MOST_WAYS:
                    return None
        return found

    def _next(self, rank: int, state: State) -> Iterator[tuple[Longer, State, State]]:
        """(which stages are longer, longer stages before each turn's, state behind)"""
        held = self.problem.held
        v, extras, after = held.per_rank, held.num_extras, held.num_ranks - 1 - rank
        if self.equal:
            (done,) = state or (0,)
            room = sum(self._most[rank + 1 :])
            for longer in itertools.product((0, 1) if extras else (0,), repeat=v):
                left = extras - done - sum(longer)
                if sum(longer) <= self._most[rank] and 0 <= left <= room:
                    yield longer, (), (done + sum(longer),)
            return
        firsts = [state[v:]] if state else list(_first_counts(v, extras, held.num_ranks))
        for first in firsts:
            so_far = state[:v] if state else (0, *first)
            # A turn ends where the next one begins.
            rests = [end - at for at, end in zip(so_far, (*first, extras), strict=True)]
            ways = [[k for k in (0, 1) if 0 <= rest - k <= after] for rest in rests]
            for longer in itertools.product(*ways):
                counts = tuple(at + k for at, k in zip(so_far, longer, strict=True))
                yield longer, so_far, (*counts, *first) if after else ()

    def _ranges(self, rank: int, begins: State, longer: Longer) -> Ranges:
        n, stages = self._least, self._stages[rank]
        if self.equal:
            sizes = zip(stages, longer, strict=True)
            return tuple(self.problem.held.example(stage, n + more) for stage, more in sizes)
        starts = [n * stage + before for stage, before in zip(stages, begins, strict=True)]
        return tuple((i, i + n + more) for i, more in zip(starts, longer, strict=True))

    def _priced(self, rank: int, ranges: Ranges, options: RankOptions) -> _Choice:
        problem, chain = self.problem, self.problem.chain
        count = len(options.label)
        columns = []
        for turn, (stage, (i, j)) in enumerate(
            zip(problem.schedule.stages_of(rank), ranges, strict=True)
        ):
            index = chain.slots[stage].costs
            columns += [
                np.full(count, float(chain.costs[index].forward_s[i:j].sum())),
                options.seconds[:, turn],
                np.full(count, float(problem.weight_s[index][i:j].sum())),
                np.full(count, float(chain.send_forward_s[stage, i])),
                np.full(count, float(chain.send_backward_s[stage, i])),
            ]
        columns.append(np.full(count, problem.held.tail_s(rank, ranges)))
        return _Choice(ranges=ranges, features=np.column_stack(columns), label=options.label)

    def _layer(
        self, num_states: int, steps: _Steps, choices: list[_Choice]
    ) -> tuple[Layer, list[State]]:
        counts = np.asarray([len(choice.label) for choice in choices], dtype=np.intp)
        begin = np.cumsum(counts) - counts
        states = sorted(set(steps.target))
        number = {state: index for index, state in enumerate(states)}
        targets = np.asarray([number[state] for state in steps.target], dtype=np.intp)
        each = np.asarray(steps.choice, dtype=np.intp)
        step = np.repeat(np.arange(len(each)), counts[each])
        within = np.arange(step.size) - np.repeat(
            np.cumsum(counts[each]) - counts[each], counts[each]
        )
        row = begin[each[step]] + within
        ranges = np.asarray([np.ravel(choice.ranges) for choice in choices], dtype=np.intp)
        return Layer(
            starts=np.searchsorted(
                np.asarray(steps.source, dtype=np.intp)[step], np.arange(num_states + 1)
            ),
            target=targets[step],
            features=np.concatenate([choice.features for choice in choices])[row],
            blocks=ranges[each[step]],
            label=np.concatenate([choice.label for choice in choices])[row],
        ), states

    # Ways and plans.

    def alone(self, rank: int, ranges: Ranges) -> RankWay | None:
        """The rank's way with stages of these sizes that takes least in all; None where none that
        is near-even fits within the limit of the layers."""
        longer = tuple(j - i - self._least for i, j in ranges)
        if not self._near_even.issuperset(longer):
            return None
        # Where the blocks are equal it does not matter where a stage begins.
        key = (rank, *longer, *(() if self.equal else (i for i, _ in ranges)))
        if key not in self._alone:
            begins = tuple(
                i - self._least * stage
                for stage, (i, _) in zip(self._stages[rank], ranges, strict=True)
            )
            self._alone[key] = self._fastest(rank, self._ranges(rank, begins, longer))
        return self._alone[key]

    def _fastest(self, rank: int, ranges: Ranges) -> RankWay | None:
        options = self.options.of(rank, ranges, self._limits[rank])
        if options is None or not len(options.label):
            return None
        priced = self._priced(rank, ranges, options)
        at = int(options.seconds.sum(axis=1).argmin())
        return RankWay(
            features=priced.features[at],
            strategies=self.options.stages.strategies(rank, ranges, options.label[at]),
        )

    def weights(self, rank: int, paths: Sequence[TimelinePath]) -> Array:
        """[5 v + 1, paths] how much each feature of the rank counts in each path."""
        return path_weights(self.problem, rank, paths)

    def partition(self, layers: Layers, ways: Sequence[int]) -> Partition:
        """The partition of one way per rank, without its step time."""
        sizes: dict[int, int] = {}
        strategies: dict[int, tuple[int, ...]] = {}
        for rank, (layer, way) in enumerate(zip(layers.layers, ways, strict=True)):
            stages = self.problem.schedule.stages_of(rank)
            ranges = tuple((int(i), int(j)) for i, j in layer.blocks[way].reshape(-1, 2))
            chosen = self.options.stages.strategies(rank, ranges, layer.label[way])
            sizes.update(zip(stages, (j - i for i, j in ranges), strict=True))
            strategies.update(zip(stages, chosen, strict=True))
        return Partition(
            starts=starts_of(tuple(sizes[stage] for stage in sorted(sizes))),
            strategies=tuple(k for stage in sorted(strategies) for k in strategies[stage]),
            step_time_s=0.0,
        )


def _alike_everywhere(problem: SplitProblem) -> bool:
    """Whether the same crosses every cut, and takes as long between the same two stages."""
    held, chain = problem.held, problem.chain
    inner = (
        held.received_bytes[1:],
        held.sent_bytes[:-1],
        *chain.send_forward_s[1:, 1:],
        *chain.send_backward_s[1:, 1:],
    )
    return not any(np.ptp(figures) for figures in inner if figures.size)


def _first_counts(turns: int, extras: int, ranks: int) -> Iterator[State]:
    """How many stages before each turn but the first may be longer: at most one per rank and turn.

    >>> list(_first_counts(2, 3, 2))
    [(1,), (2,)]
    """
    for first in itertools.product(range(extras + 1), repeat=turns - 1):
        if all(0 <= b - a <= ranks for a, b in itertools.pairwise((0, *first, extras))):
            yield first


assert COLUMNS == 5  # as _priced has them
