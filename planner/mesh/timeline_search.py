"""Plans of cells whose step time needs the event timeline: schedules with a split backward,
round-robin stages or a V, and 1F1B with stages too unequal for its closed form.

Local search: starting from even stages, blocks are moved between stages as long as the timeline
gets shorter, beginning with moves that relieve the busiest rank most. Each rank uses the fastest
strategies that fit: a block's strategy is changed in the order of bytes freed per second (Dantzig's
rule for the knapsack) until the rank fits, and unnecessary changes are undone. Time and memory of
the plan are exact. If there are few splits into stages, each is timed with every block at its
fastest, which gives a lower bound.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from math import comb

import numpy as np

from planner.chain.ideals import Index
from planner.chain.problem import Array, Partition
from planner.costs.split_problem import (
    Ranges,
    RankBytes,
    SplitProblem,
    split_durations,
    split_moments,
    split_tails,
)
from simulator.schedules.schedule import schedule_kind
from simulator.schedules.timeline import simulate

_ACTIONS = 600_000  # in the timelines of a search; some 3 million take a second
_PROOF_ACTIONS = 600_000  # in the timelines of a proof: 0.2 s
_BETTER = 1e-9  # relative; sums taken in another order differ by a few ulp
_FEW = 200  # number of splits up to which all are tried if nothing else fits
_TAKEN_BACK = 10  # changes of strategy for which undoing is tried

Cuts = tuple[int, ...]
"""The first block of each stage, and the number of blocks."""
Strategies = tuple[tuple[int, ...], ...]
_Change = tuple[int, float, int]
"""A change of a block's strategy: index among the rank's blocks, added seconds, new strategy."""


@dataclass(frozen=True, slots=True)
class _Filled:
    """Strategies of the stages of one rank or of all ranks, with the seconds per micro-batch of the
    busiest rank; whether they fit, and whether every block is at its fastest."""

    strategies: Strategies
    busy_s: float
    fits: bool
    is_free: bool


class TimelineSearch:
    """The search of one cell. `actions_left`: how many actions its timelines may still have."""

    def __init__(self, problem: SplitProblem) -> None:
        self.problem, self.chain = problem, problem.chain
        chain, schedule = problem.chain, problem.schedule
        self.actions_left = _ACTIONS
        self._actions = sum(len(row) for row in schedule.ranks)
        self._micro = chain.num_microbatches
        self._fills: dict[tuple[object, ...], _Filled] = {}
        self._is_near_even = schedule_kind(schedule.name).is_interleaved
        owner = np.asarray(schedule.stage_to_rank)
        self._is_owner = (owner[:, None] == np.arange(problem.num_ranks)).astype(float)
        # [costs, n + 1] seconds before each block with every block at its fastest.
        self._before = np.asarray(
            [chain.lattice.before(c.forward_s + c.backward_s.min(axis=1)) for c in chain.costs]
        )
        self._costs_of = np.asarray([slot.costs for slot in chain.slots])
        self._beside = np.asarray([slot.outside_blocks_s for slot in chain.slots])
        # For each of the costs: each block's fastest strategy. For each rank: its stages.
        self._quickest = [tuple(c.backward_s.argmin(axis=1).tolist()) for c in chain.costs]
        self._stages = [schedule.stages_of(rank) for rank in range(problem.num_ranks)]

    def best(self, below: float = np.inf, known: tuple[int, ...] | None = None) -> Partition | None:
        """A good plan that fits and takes less than `below` seconds; None if none was found.

        known  first blocks of stages to start from, in addition to even ones
        """
        n = self.chain.num_blocks
        begin = [*self._first_cuts(), *([(*known, n)] if known is not None else [])]
        best = self._best_of(begin, below)
        if best is None and comb(n - 1, self.chain.num_stages - 1) <= _FEW:
            best = self._best_of(self._every_cuts(), below)
        return None if best is None else self._shortened(best)

    def proved(self, below: float) -> tuple[float, Partition | None]:
        """A lower bound in seconds on the cell's plans, at most `below`, and the plan that attains
        it if that plan fits; 0 if there are too many splits into stages.

        Longer actions make a timeline longer, so no choice of strategies is faster than every block
        at its fastest.
        """
        n, stages = self.chain.num_blocks, self.chain.num_stages
        count = comb(stages, n % stages) if self._is_near_even else comb(n - 1, stages - 1)
        if count * self._actions > _PROOF_ACTIONS:
            return 0.0, None
        every = np.asarray(list(self._every_cuts()))
        busiest_s = self._busiest_s(every)
        least, best = below, None
        for at in np.argsort(busiest_s, kind="stable"):
            if busiest_s[at] >= least:
                break
            cuts = tuple(every[at].tolist())
            fastest = [
                k
                for slot, (i, j) in zip(self.chain.slots, pairwise(cuts), strict=True)
                for k in self._quickest[slot.costs][i:j]
            ]
            found = self._run(cuts, tuple(fastest))
            if found.step_time_s < least * (1 - _BETTER):
                least = found.step_time_s
                best = found if self._filled(cuts).is_free else None
        return least, best

    def _best_of(self, begin: Iterable[Cuts], below: float) -> Partition | None:
        """The fastest plan with one of these stage cuts, if it fits and takes less than `below`."""
        best: Partition | None = None
        for cuts in dict.fromkeys(begin):
            limit = best.step_time_s if best else below
            if self._busiest_s(np.asarray([cuts]))[0] < limit:
                best = self._shorter(cuts, limit) or best
        return best

    def _shorter(self, cuts: Cuts, below: float) -> Partition | None:
        """The plan with these stages if it fits and takes less than `below` seconds."""
        filled = self._filled(cuts)
        if not filled.fits or filled.busy_s * self._micro >= below:
            return None
        found = self._run(cuts, tuple(k for chosen in filled.strategies for k in chosen))
        return found if found.step_time_s < below else None

    # Stages.

    def _first_cuts(self) -> Iterator[Cuts]:
        """Starting cuts: equal numbers of blocks; without interleaving also equal times."""
        n, stages = self.chain.num_blocks, self.chain.num_stages
        yield tuple(n * s // stages for s in range(stages + 1))
        if self._is_near_even:
            return
        before = self._before.mean(axis=0)
        cuts = [0]
        for stage in range(1, stages):
            cut = int(np.abs(before - before[-1] * stage / stages).argmin())
            cuts.append(min(max(cut, cuts[-1] + 1), n - (stages - stage)))
        yield (*cuts, n)

    def _every_cuts(self) -> Iterator[Cuts]:
        n, stages = self.chain.num_blocks, self.chain.num_stages
        if not self._is_near_even:
            yield from ((0, *cuts, n) for cuts in combinations(range(1, n), stages - 1))
            return
        least, more = divmod(n, stages)
        for larger in combinations(range(stages), more):
            yield tuple(least * s + sum(stage < s for stage in larger) for s in range(stages + 1))

    def _moved(self, cuts: Cuts) -> tuple[Index, Array]:
        """[moves, stages + 1] cuts after moving a block to another stage, sorted by the work of the
        busiest rank, and that work."""
        most = -(-self.chain.num_blocks // self.chain.num_stages)
        size = np.diff(cuts)
        gives = (size > 1) & ((size == most) | (not self._is_near_even))
        takes = (size < most) | (not self._is_near_even)
        giver, taker = np.nonzero(gives[:, None] & takes[None, :] & ~np.eye(len(size), dtype=bool))
        stage = np.arange(len(cuts))
        behind_taker, behind_giver = stage > taker[:, None], stage > giver[:, None]
        moved = np.asarray(cuts) + behind_taker.astype(int) - behind_giver
        busiest = self._busiest_s(moved)
        order = np.argsort(busiest, kind="stable")
        return moved[order], busiest[order]

    def _busiest_s(self, cuts: Index) -> Array:
        """[splits] seconds of the busiest rank, all blocks at their fastest: a bound on the
        timeline."""
        ends = self._before[self._costs_of[None, :], cuts[:, 1:]]
        stage_s = ends - self._before[self._costs_of[None, :], cuts[:, :-1]] + self._beside
        return np.asarray((stage_s @ self._is_owner).max(axis=1) * self._micro)

    def _shortened(self, best: Partition) -> Partition:
        """The plan after moving blocks until no move shortens the timeline or the limit on timeline
        actions is reached."""
        while True:
            moves, works = self._moved((*best.starts, self.chain.num_blocks))
            for cuts, busiest_s in zip(moves.tolist(), works, strict=True):
                if busiest_s >= best.step_time_s or self.actions_left <= 0:
                    return best
                found = self._shorter(tuple(cuts), best.step_time_s * (1 - _BETTER))
                if found is not None:
                    best = found
                    break
            else:
                return best

    def _filled(self, cuts: Cuts) -> _Filled:
        """The stages between these cuts with strategies."""
        ranges = tuple(pairwise(cuts))
        strategies: list[tuple[int, ...]] = [()] * len(ranges)
        ranks = []
        for rank, stages in enumerate(self._stages):
            ranks.append(self._fill(rank, tuple([ranges[stage] for stage in stages])))
            for stage, chosen in zip(stages, ranks[-1].strategies, strict=True):
                strategies[stage] = chosen
        return _Filled(
            tuple(strategies),
            max(each.busy_s for each in ranks),
            all(each.fits for each in ranks),
            all(each.is_free for each in ranks),
        )

    def _run(self, cuts: Cuts, strategies: tuple[int, ...]) -> Partition:
        """The plan with the step time of its timeline."""
        found = Partition(starts=cuts[:-1], strategies=strategies, step_time_s=0.0)
        self.actions_left -= self._actions
        return replace(found, step_time_s=timeline_step_s(self.problem, found))

    # Strategies.

    def _fill(self, rank: int, ranges: Ranges) -> _Filled:
        kinds = self.chain.kinds
        key = (rank, *[kinds[i:j] for i, j in ranges])
        if key not in self._fills:
            self._fills[key] = self._choose(rank, ranges)
        return self._fills[key]

    def _choose(self, rank: int, ranges: Ranges) -> _Filled:
        """The rank's strategies: from the fastest ones, the changes that free the most memory per
        second are made until the rank fits (Dantzig's rule for the knapsack problem)."""
        chain = self.chain
        stages = self._stages[rank]
        where = [(turn, b) for turn, (i, j) in enumerate(ranges) for b in range(i, j)]
        of_turn = [chain.slots[stage].costs for stage in stages]
        fastest = [self._quickest[of_turn[turn]][b] for turn, b in where]
        held = RankBytes(self.problem, rank, ranges)
        capacity = chain.slots[stages[0]].capacity_bytes

        def changed(taken: Sequence[_Change]) -> tuple[int, ...]:
            result = list(fastest)
            for place, _, to in taken:
                result[place] = to
            return tuple(result)

        def fits(taken: Sequence[_Change]) -> bool:
            return held.peak(changed(taken)) <= capacity

        taken: list[_Change] = []
        is_free = fits(taken)
        if not is_free:
            every = self._changes(rank, where, fastest)
            # As many changes as are needed.
            enough = range(len(every))
            taken = every[: bisect_left(enough, True, key=lambda count: fits(every[:count]))]
            dear = sorted(taken, key=lambda change: -change[1])[:_TAKEN_BACK]
            for change in dear if fits(taken) else ():
                fewer = [other for other in taken if other != change]
                taken = fewer if fits(fewer) else taken
        best = changed(taken)
        by_stage: list[list[int]] = [[] for _ in stages]
        for (turn, _), k in zip(where, best, strict=True):
            by_stage[turn].append(k)
        busy = sum(chain.slots[stage].outside_blocks_s for stage in stages) + sum(
            float(chain.costs[of_turn[turn]].forward_s[b])
            + float(chain.costs[of_turn[turn]].backward_s[b, k])
            for (turn, b), k in zip(where, best, strict=True)
        )
        return _Filled(tuple(map(tuple, by_stage)), busy, is_free or fits(taken), is_free)

    def _changes(
        self, rank: int, where: list[tuple[int, int]], fastest: list[int]
    ) -> list[_Change]:
        """Strategy changes that free memory, sorted by bytes freed per second; each change of a
        block frees more than its earlier ones."""
        problem = self.problem
        schedule, chain = problem.schedule, self.chain
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
    """Step time in seconds by the event timeline: the end of the last rank, including its tail."""
    timeline = simulate(problem.schedule, split_durations(problem, found.starts, found.strategies))
    tails = split_tails(problem, found.starts)
    return max(timeline.rank_end_s(rank) + tail_s for rank, tail_s in enumerate(tails))
