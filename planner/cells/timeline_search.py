"""Plans of cells whose step only the event timeline tells: schedules that split the backward,
stages in turn or in a V, and stages too unlike for the closed form of 1F1B.

Local search: from even stages, blocks move from one stage to another as long as the busiest rank
gets less busy, with every block at its fastest; then, where memory binds, as long as fewer bytes
lack or the busiest rank gets less busy; then as long as the timeline gets shorter. Each rank takes
the fastest strategies that fit: of all changes of one block's strategy those that free most bytes
per second come first (Dantzig's rule for the knapsack), as many as are needed; what turns out not
to be needed is taken back. Time and memory of the plan are exact. Where there are few splits into
stages each is timed with every block at its fastest: nothing is faster than the fastest of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain as joined
from itertools import combinations, pairwise
from math import comb

import numpy as np
import numpy.typing as npt

from planner.chain.problem import Array, Partition
from planner.costs.split_problem import (
    Ranges,
    RankBytes,
    SplitProblem,
    most_per_stage,
    ranges_of,
    split_durations,
    split_moments,
    split_tails,
    starts_of,
)
from simulator.schedules.timeline import simulate

_ACTIONS = 600_000  # in the timelines of a search; some 3 million take a second
_PROOF_ACTIONS = 600_000  # in the timelines of a proof: 0.2 s
_NEAR = 1.05  # of the time to be under; plans beyond it are not bettered
_BETTER = 1e-9  # relative; sums taken in another order differ by a few ulp
_FEW = 200  # splits into stages that are all tried where nothing else fits
_MOVES = 32  # that are tried at each step while bytes lack
_TAKEN_BACK = 10  # changes of strategy that are tried again without

Sizes = tuple[int, ...]
Strategies = tuple[tuple[int, ...], ...]
Index = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class _Filled:
    """A rank's stages with strategies: seconds per micro-batch, bytes above the capacity, and
    whether every block runs at its fastest."""

    strategies: Strategies
    busy_s: float
    over_bytes: float
    is_free: bool


@dataclass(frozen=True, slots=True)
class _Split:
    """Stages of these sizes, filled: bytes that ranks lack, the work of the busiest rank, and
    whether every block runs at its fastest."""

    sizes: Sizes
    strategies: tuple[int, ...]
    over_bytes: float
    busiest_s: float
    is_free: bool

    def is_better_than(self, other: _Split) -> bool:
        """Whether it lacks fewer bytes or, lacking as many, has the less busy busiest rank."""
        mine = (self.over_bytes, self.busiest_s)
        return mine < (other.over_bytes, other.busiest_s * (1 - _BETTER))


class TimelineSearch:
    """The search of one cell."""

    def __init__(self, problem: SplitProblem) -> None:
        self.problem = problem
        chain, schedule = problem.chain, problem.schedule
        self._actions_left = _ACTIONS
        self._actions = sum(len(row) for row in schedule.ranks)
        self._micro = chain.num_microbatches
        self._fills: dict[tuple[object, ...], _Filled] = {}
        self._is_near_even = schedule.name == "interleaved"
        owner = np.asarray(schedule.stage_to_rank)
        self._is_owner = (owner[:, None] == np.arange(problem.num_ranks)).astype(float)
        # [costs, n + 1] seconds before each block at its fastest.
        self._before = np.asarray(
            [
                np.concatenate([[0.0], np.cumsum(c.forward_s + c.backward_s.min(axis=1))])
                for c in chain.costs
            ]
        )
        self._costs_of = np.asarray([slot.costs for slot in chain.slots])
        self._beside = np.asarray([slot.beside_s for slot in chain.slots])
        # Of each costs, the strategy at which each block is fastest; of each rank, its stages.
        self._quickest = [tuple(c.backward_s.argmin(axis=1).tolist()) for c in chain.costs]
        self._stages = [schedule.stages_of(rank) for rank in range(problem.num_ranks)]

    def best(self, below: float = np.inf, known: tuple[int, ...] | None = None) -> Partition | None:
        """A good plan that fits and takes less than `below` seconds, or None where none was found.

        known  first blocks of stages to begin from, beside even ones
        """
        first = tuple(self._first_sizes())
        begin = [self._evened(sizes) for sizes in first]
        if known is not None:
            begin.append(_sizes(known, self.problem.chain.num_blocks))
        best = self._best_of(begin, below * _NEAR) or self._best_of(first, below * _NEAR)
        if best is None and comb(self.problem.chain.num_blocks - 1, len(first[0]) - 1) <= _FEW:
            best = self._best_of(tuple(self._every_sizes()), below * _NEAR)
        if best is None or best.step_time_s >= below * _NEAR:
            return None
        best = self._shortened(best)
        return best if best.step_time_s < below else None

    def proved(self, below: float) -> tuple[float, Partition | None]:
        """Seconds under which no plan of the cell is, at most `below`, and a plan that takes them
        where one with every block at its fastest fits; 0 where there are too many splits.

        A timeline takes the longer the longer its actions take, so that no strategies, and no
        limit of memory, make a split faster than its blocks' fastest do.
        """
        n, stages = self.problem.chain.num_blocks, self.problem.chain.num_stages
        count = comb(stages, n % stages) if self._is_near_even else comb(n - 1, stages - 1)
        if count * self._actions > _PROOF_ACTIONS:
            return 0.0, None
        every = list(self._every_sizes())
        busiest_s = self._busiest_s(_cuts(every))
        least, best = below, None
        for at in np.argsort(busiest_s, kind="stable"):
            if busiest_s[at] >= least:
                break
            found = self._run(self._fastest(every[at]))
            if found.step_time_s < least * (1 - _BETTER):
                least = found.step_time_s
                best = found if self._split(every[at]).is_free else None
        return least, best

    def _fastest(self, sizes: Sizes) -> _Split:
        """Stages of these sizes with every block at its fastest, whether it fits or not."""
        chain = self.problem.chain
        every: list[int] = []
        for stage, (i, j) in enumerate(ranges_of(starts_of(sizes), chain.num_blocks)):
            every.extend(self._quickest[chain.slots[stage].costs][i:j])
        return _Split(sizes, tuple(every), 0.0, 0.0, True)

    def _best_of(self, begin: Sequence[Sizes], below: float) -> Partition | None:
        """The shortest of the plans that fit, from stages of these sizes."""
        best: Partition | None = None
        for sizes in dict.fromkeys(begin):
            limit = best.step_time_s if best else below
            if self._busiest_s(_cuts([sizes]))[0] >= limit:
                continue
            split = self._fitted(self._split(sizes))
            if split.over_bytes <= 0.0 and split.busiest_s < limit:
                found = self._run(split)
                best = found if best is None or found.step_time_s < best.step_time_s else best
        return best

    # Stages.

    def _first_sizes(self) -> Iterator[Sizes]:
        """Even numbers of blocks; but for interleaved stages also even times."""
        chain = self.problem.chain
        n, stages = chain.num_blocks, chain.num_stages
        yield tuple(n * (s + 1) // stages - n * s // stages for s in range(stages))
        if self._is_near_even:
            return
        before = self._before.mean(axis=0)
        cuts = [0]
        for stage in range(1, stages):
            cut = int(np.abs(before - before[-1] * stage / stages).argmin())
            cuts.append(min(max(cut, cuts[-1] + 1), n - (stages - stage)))
        yield tuple(j - i for i, j in pairwise((*cuts, n)))

    def _every_sizes(self) -> Iterator[Sizes]:
        n, stages = self.problem.chain.num_blocks, self.problem.chain.num_stages
        if self._is_near_even:
            least, more = divmod(n, stages)
            for larger in combinations(range(stages), more):
                yield tuple(least + (stage in larger) for stage in range(stages))
            return
        for cuts in combinations(range(1, n), stages - 1):
            yield _sizes((0, *cuts), n)

    def _moved(self, sizes: Sizes) -> tuple[Index, Array]:
        """[moves, stages + 1] cuts with a block of one stage given to another, and the work of the
        busiest rank then, the least first."""
        chain = self.problem.chain
        most = most_per_stage(chain.num_blocks, chain.num_stages)
        size = np.asarray(sizes)
        gives = (size > 1) & ((size == most) | (not self._is_near_even))
        takes = (size < most) | (not self._is_near_even)
        giver, taker = np.nonzero(gives[:, None] & takes[None, :] & ~np.eye(len(size), dtype=bool))
        moved = np.repeat(size[None, :], len(giver), axis=0)
        rows = np.arange(len(giver))
        moved[rows, giver] -= 1
        moved[rows, taker] += 1
        cuts = _cuts(moved)
        busiest = self._busiest_s(cuts)
        order = np.argsort(busiest, kind="stable")
        return cuts[order], busiest[order]

    def _busiest_s(self, cuts: Index) -> Array:
        """[splits] work of the busiest rank, every block at its fastest: no timeline takes less."""
        ends = self._before[self._costs_of[None, :], cuts[:, 1:]]
        stage_s = ends - self._before[self._costs_of[None, :], cuts[:, :-1]] + self._beside
        return np.asarray((stage_s @ self._is_owner).max(axis=1, initial=0.0) * self._micro)

    def _evened(self, sizes: Sizes) -> Sizes:
        """The stages from which no moved block makes the busiest rank less busy."""
        busiest = float(self._busiest_s(_cuts([sizes]))[0])
        while True:
            cuts, others = self._moved(sizes)
            if not len(others) or others[0] >= busiest * (1 - _BETTER):
                return sizes
            sizes, busiest = tuple(np.diff(cuts[0]).tolist()), float(others[0])

    def _fitted(self, split: _Split) -> _Split:
        """The stages from which no moved block is better in view of memory: while bytes lack the
        best move is taken, then the first."""
        while not split.is_free:
            begun = split
            moves, busiest_s = self._moved(begun.sizes)
            for tried, cuts in enumerate(moves):
                fits = split.over_bytes <= 0.0
                if fits and (split is not begun or busiest_s[tried] >= split.busiest_s):
                    break
                if tried == _MOVES:
                    break
                other = self._split(tuple(np.diff(cuts).tolist()))
                split = other if other.is_better_than(split) else split
            if split is begun:
                return split
        return split

    def _shortened(self, best: Partition) -> Partition:
        """The plan from which no moved block makes a shorter timeline, as far as actions last."""
        while True:
            sizes = _sizes(best.starts, self.problem.chain.num_blocks)
            for cuts, busiest_s in zip(*self._moved(sizes), strict=True):
                if busiest_s >= best.step_time_s or self._actions_left <= 0:
                    return best
                split = self._split(tuple(np.diff(cuts).tolist()))
                if split.over_bytes > 0.0 or split.busiest_s >= best.step_time_s:
                    continue
                found = self._run(split)
                if found.step_time_s < best.step_time_s * (1 - _BETTER):
                    best = found
                    break
            else:
                return best

    def _split(self, sizes: Sizes) -> _Split:
        ranges = ranges_of(starts_of(sizes), self.problem.chain.num_blocks)
        strategies: list[tuple[int, ...]] = [()] * len(sizes)
        over = busiest = 0.0
        is_free = True
        for rank, stages in enumerate(self._stages):
            filled = self._fill(rank, tuple([ranges[stage] for stage in stages]))
            for stage, chosen in zip(stages, filled.strategies, strict=True):
                strategies[stage] = chosen
            over += filled.over_bytes
            busiest = max(busiest, filled.busy_s)
            is_free &= filled.is_free
        every = tuple(joined.from_iterable(strategies))
        return _Split(sizes, every, over, busiest * self._micro, is_free)

    def _run(self, split: _Split) -> Partition:
        """The plan with its step by the timeline."""
        starts = starts_of(split.sizes)
        found = Partition(starts=starts, strategies=split.strategies, step_time_s=0.0)
        self._actions_left -= self._actions
        return replace(found, step_time_s=timeline_step_s(self.problem, found))

    # Strategies.

    def _fill(self, rank: int, ranges: Ranges) -> _Filled:
        kinds = self.problem.chain.kinds
        key = (rank, *[kinds[i:j] for i, j in ranges])
        if key not in self._fills:
            self._fills[key] = self._choose(rank, ranges)
        return self._fills[key]

    def _choose(self, rank: int, ranges: Ranges) -> _Filled:
        """The rank's strategies by Dantzig's rule."""
        chain = self.problem.chain
        stages = self._stages[rank]
        where = [(turn, b) for turn, (i, j) in enumerate(ranges) for b in range(i, j)]
        costs = [chain.costs[chain.slots[s].costs] for s in stages]
        quickest = [self._quickest[chain.slots[s].costs] for s in stages]
        fastest = [quickest[turn][b] for turn, b in where]
        changes: list[tuple[int, float, int]] = []

        def strategies(taken: list[int]) -> list[int]:
            result = list(fastest)
            for at in taken:
                place, _, to = changes[at]
                result[place] = to
            return result

        held = RankBytes(self.problem, rank, ranges)
        capacity = chain.slots[stages[0]].capacity_bytes

        def over(taken: list[int]) -> float:
            return held.peak(tuple(strategies(taken))) - capacity

        taken: list[int] = []
        missing = over(taken)
        is_free = missing <= 0.0
        if not is_free:
            changes = self._changes(rank, where, fastest)
            taken = list(range(len(changes)))
            missing = over(taken)
            low, high = 0, len(changes)
            while high - low > 1:  # as many changes as are needed
                middle = (low + high) // 2
                there = over(taken[:middle])
                if there <= 0.0:
                    high, missing = middle, there
                else:
                    low = middle
            taken = taken[:high]
            dear = sorted(taken, key=lambda at: -changes[at][1])[:_TAKEN_BACK]
            for at in dear if missing <= 0.0 else ():
                fewer = [other for other in taken if other != at]
                taken = fewer if over(fewer) <= 0.0 else taken
        best = strategies(taken)
        busy = sum(chain.slots[s].beside_s for s in stages) + sum(
            float(costs[turn].forward_s[b] + costs[turn].backward_s[b, k])
            for (turn, b), k in zip(where, best, strict=True)
        )
        return _Filled(_by_stage(where, best, len(ranges)), busy, max(0.0, missing), is_free)

    def _changes(
        self, rank: int, where: list[tuple[int, int]], fastest: list[int]
    ) -> list[tuple[int, float, int]]:
        """(place, seconds, strategy) of changes that free bytes, in the order in which they are
        worth it; of one place each frees more than those before."""
        problem = self.problem
        schedule, chain = problem.schedule, problem.chain
        stages = self._stages[rank]
        known = split_moments(
            schedule.name, problem.num_ranks, schedule.num_microbatches, problem.per_rank, rank
        )
        fullest = int((known.whole.sum(axis=1) + known.half.sum(axis=1)).argmax())
        found: list[tuple[float, int, float, int]] = []
        for place, ((turn, block), start) in enumerate(zip(where, fastest, strict=True)):
            index = chain.slots[stages[turn]].costs
            seconds = chain.costs[index].backward_s[block]
            held = float(known.whole[fullest, turn]) * chain.costs[index].saved_bytes[block]
            held = held + float(known.half[fullest, turn]) * problem.weight_bytes[index][block]
            at, worth = start, 0.0
            while True:
                freed = held[at] - held
                slower = (seconds - seconds[at]) / np.where(freed > 0, freed, 1.0)
                rate = np.where(freed > 0, slower, np.inf)
                to = int(rate.argmin())
                if not np.isfinite(rate[to]):
                    break
                worth = max(worth, float(rate[to]))
                found.append((worth, place, float(seconds[to] - seconds[at]), to))
                at = to
        found.sort(key=lambda change: (change[0], change[1]))
        return [(place, seconds, to) for _, place, seconds, to in found]


def timeline_step_s(problem: SplitProblem, found: Partition) -> float:
    """Seconds of a step by the event timeline: the last rank's end with its tail."""
    timeline = simulate(problem.schedule, split_durations(problem, found.starts, found.strategies))
    tails = split_tails(problem, found.starts)
    return max(timeline.rank_end_s(rank) + tail_s for rank, tail_s in enumerate(tails))


def _sizes(starts: tuple[int, ...], num_blocks: int) -> Sizes:
    return tuple(j - i for i, j in pairwise((*starts, num_blocks)))


def _cuts(sizes: Sequence[Sizes] | Index) -> Index:
    """[splits, stages + 1] blocks before each stage, and all."""
    return np.pad(np.cumsum(np.asarray(sizes, dtype=np.intp), axis=1), ((0, 0), (1, 0)))


def _by_stage(where: list[tuple[int, int]], chosen: list[int], turns: int) -> Strategies:
    """The strategies of a rank's blocks, stage by stage."""
    return tuple(
        tuple(k for (turn, _), k in zip(where, chosen, strict=True) if turn == own)
        for own in range(turns)
    )
