"""Stages for the interleaved schedule, and what no plan of its space can beat.

The space is that of near-even splits (planner/interleaved_problem.py). Where all blocks are equal
but for a few at the chain's ends, a rank's least seconds follow from how many blocks it has
(planner/rank_fill.py), and only the extra blocks couple the ranks: as a step takes M x the seconds
of its busiest rank and more, they are dealt out one by one to the rank that is least busy with one
more, which is exact for the highest of rising costs. Other chains are split by a descent
(planner/interleave_descent.py) and keep the bound of their cell.

Paths through every interleaved timeline (p ranks of v stages; T_{l,r} the seconds of stage l of
rank r, R_r their sum over l, W the sum of all, c the sends passed, F_r the longest of the rank's
forwards):
    down to rank r, all its work, up again        sum_{j<r} T_{0,j} + c + M R_r
    the same, but on with micro-batch 0 through the last stages to the end and back, instead of the
    2 (p-1-r) forwards that the rank runs meanwhile
                                                  + sum_{j>r} T_{v-1,j} - 2 (p-1-r) F_r
    all stages down and up with micro-batch 0, the last rank's work but for p micro-batches, down
    and up with the last one                      W + c + (M - p) R_{p-1} + (p-1) T_{v-1,p-1}
each with the tail of rank 0, where it ends. The first needs nothing of the schedule but its order;
the others hold as rank r runs (v-1) p + 2 (p-1-r) forwards ahead (planner/in_flight.py).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from planner.interleave_descent import descend
from planner.interleaved_problem import InterleavedProblem, ranges_of, starts_of
from planner.problem import Array, Partition, stage_times
from planner.rank_blocks import RankBlocks, ends_of
from planner.rank_fill import Filling, fill, least_seconds, least_stage_seconds, longest_forward_s
from planner.rank_search import search_filling
from simulator.durations import Durations
from simulator.schedule import build_schedule
from simulator.timeline import simulate

_TIMELINES = 200  # that are run at most to better a plan,
_ACTIONS = 100_000  # and actions in them
_NEAR = 1.02  # of the time to beat; plans beyond it are not bettered
_POWER = 16  # of the norm that stands for the maximum over ranks while stages are aligned
_PROOFS = 4  # ranks of a cell that are searched through for its bound


@dataclass(frozen=True, slots=True, kw_only=True)
class _Least:
    """What a rank takes at least. Seconds per micro-batch: of all its stages by extra blocks, asked
    for up to `known` of them and taken for more, too; of its first stage, of its last; its longest
    forward by extra blocks."""

    known: int
    whole: tuple[float, ...]
    first: float
    last: float
    forward: tuple[float, ...]


class Interleaver:
    """Bound and plans of one interleaved cell."""

    def __init__(self, problem: InterleavedProblem) -> None:
        self.problem = problem
        self.ends = ends_of(problem)
        self._blocks: dict[int, RankBlocks] = {}
        self._proved: set[tuple[int, int]] = set()
        self._fillings: dict[tuple[int, int], tuple[Filling, ...]] = {}

    @functools.cached_property
    def bound_s(self) -> float:
        """Seconds that no plan of the space can beat, infinite where none fits; 0 where the blocks
        are not equal."""
        if self.ends is None:
            return 0.0
        problem = self.problem
        smallest = tuple(problem.example(s, problem.least_blocks) for s in problem.stages_of(0))
        tail_s = problem.tail_s(0, smallest)
        ranks = self._ranks
        if not ranks:
            return np.inf
        proofs = 0
        while True:
            steps = self._paths(ranks) + tail_s
            # With more extra blocks a rank may be under what it is with fewer only by a weaker
            # path.
            steps = np.minimum.accumulate(steps[:, ::-1], axis=1)[:, ::-1]
            dealt = deal(steps, problem.num_extras)
            if dealt is None:
                return np.inf
            if self._ask(dealt):
                continue
            longest = [float(steps[rank, extras]) for rank, extras in enumerate(dealt)]
            rank = longest.index(max(longest))
            if proofs == _PROOFS or not self._prove(rank, dealt[rank]):
                return max(longest)
            proofs += 1

    @functools.cached_property
    def _ranks(self) -> list[_Least]:
        """What each rank takes at least; empty where some rank cannot hold its blocks."""
        share = -(-self.problem.num_extras // self.problem.num_ranks)
        found: dict[int, _Least] = {}
        # The first rank holds most micro-batches: it alone often tells.
        first = self._least([0], share)
        if not np.isfinite(first[0].whole[0]):
            return []
        groups: dict[tuple[object, ...], list[int]] = {}
        for rank in range(1, self.problem.num_ranks):
            groups.setdefault(self._blocks_of(rank).alike, []).append(rank)
        for ranks in groups.values():
            found.update(zip(ranks, self._least(ranks, share), strict=True))
        every = [*first, *[found[rank] for rank in sorted(found)]]
        return every if all(np.isfinite(rank.whole[0]) for rank in every) else []

    def _blocks_of(self, rank: int) -> RankBlocks:
        if rank not in self._blocks:
            assert self.ends is not None  # unlike blocks go to the descent
            self._blocks[rank] = RankBlocks(self.problem, self.ends, rank)
        return self._blocks[rank]

    def _least(self, ranks: list[int], known: int) -> list[_Least]:
        """What ranks that are alike take at least."""
        most = min(self.problem.per_rank, self.problem.num_extras)
        known = min(known, most)
        blocks = [self._blocks_of(rank) for rank in ranks]
        whole = np.zeros((len(ranks), most + 1))
        for extras in range(known + 1):
            whole[:, extras] = least_seconds(blocks, extras)
        whole = np.maximum.accumulate(whole, axis=1)
        forward = tuple(longest_forward_s(blocks[0], extras) for extras in range(most + 1))
        first = least_stage_seconds(blocks, 0)
        last = least_stage_seconds(blocks, self.problem.per_rank - 1)
        return [
            _Least(
                known=known,
                whole=tuple(row.tolist()),
                first=float(first[index]),
                last=float(last[index]),
                forward=forward,
            )
            for index, row in enumerate(whole)
        ]

    def _ask(self, dealt: list[int]) -> bool:
        """Completes the figures of ranks for as many extra blocks; True where they changed."""
        changed = False
        for rank, extras in enumerate(dealt):
            if extras > self._ranks[rank].known:
                (least,) = self._least([rank], extras)
                raised = np.maximum(least.whole, self._ranks[rank].whole)
                self._ranks[rank] = replace(least, whole=tuple(raised.tolist()))
                changed = True
        return changed

    def _prove(self, rank: int, extras: int) -> bool:
        """Raises a rank's figures to its true least seconds; False where they are known or cannot
        be found out."""
        if (rank, extras) in self._proved:
            return False
        self._proved.add((rank, extras))
        known = self._ranks[rank].whole
        fillings = self._filled(rank, extras)
        reached = fillings[0].seconds if fillings else np.inf
        if reached <= known[extras] * (1 + 1e-9):
            return False
        found = search_filling(self._blocks_of(rank), extras, reached)
        if found is None or found.seconds <= known[extras] * (1 + 1e-9):
            return False
        if found.filling is not None:
            self._fillings[rank, extras] = (found.filling,)
        raised = np.maximum(known, [0.0] * extras + [found.seconds] * (len(known) - extras))
        self._ranks[rank] = replace(self._ranks[rank], whole=tuple(raised.tolist()))
        return True

    def _paths(self, ranks: list[_Least]) -> Array:
        """[p, extra blocks + 1] the longest of the paths that turn at each rank."""
        problem, chain = self.problem, self.problem.chain
        p, m = problem.num_ranks, chain.num_microbatches
        whole = np.asarray([rank.whole for rank in ranks])
        forward = np.asarray([rank.forward for rank in ranks])
        first = np.concatenate([[0.0], np.cumsum([rank.first for rank in ranks])])
        last = np.cumsum([0.0, *[rank.last for rank in ranks[::-1]]])[::-1]
        sends = self._least_sends()
        found = np.zeros_like(whole)
        for r in range(p):
            down = first[r] + float(sends[1 : r + 1].sum())
            ahead = 2 * (p - 1 - r)
            beyond = last[r + 1] + float(sends[-ahead // 2 :].sum() if ahead else 0.0)
            found[r] = m * whole[r] + down + np.maximum(0.0, beyond - ahead * forward[r])
        others = _cheapest_sums(whole[:-1], problem.num_extras)
        for extras in range(whole.shape[1]):
            left = problem.num_extras - extras
            if left < 0 or not np.isfinite(others[left]):
                found[-1, extras] = np.inf
                continue
            through = others[left] + (m - p + 1) * whole[-1, extras] + float(sends.sum())
            found[-1, extras] = max(found[-1, extras], through + (p - 1) * ranks[-1].last)
        return found

    def _least_sends(self) -> Array:
        """[p * v] seconds down and up over the cut before each stage, at least; 0 for the first."""
        chain = self.problem.chain
        found = (chain.send_forward_s + chain.send_backward_s)[:, 1:].min(axis=1)
        found[0] = 0.0
        return np.asarray(found)

    def best(self, below: float = np.inf) -> Partition | None:
        """A good plan that fits, its step time that of the timeline; None where none was found, or
        surely none under `below`. Without equal blocks the step time is the descent's measure."""
        if self.ends is None:
            return descend(self.problem)
        problem = self.problem
        if not np.isfinite(self.bound_s):
            return None
        dealt = self._dealt()
        if dealt is None:
            return None
        options = [self._filled(rank, extras) for rank, extras in enumerate(dealt)]
        busiest = max(found[0].seconds for found in options)
        if busiest * problem.chain.num_microbatches >= below:
            return None
        within = busiest * (1 + 1e-9)
        aligned = _aligned([tuple(f for f in found if f.seconds <= within) for found in options])
        return self._settle(aligned, dealt, below)

    def _dealt(self) -> list[int] | None:
        """The extra blocks of each rank that make the busiest filling least busy."""
        table = np.zeros((self.problem.num_ranks, len(self._ranks[0].whole)))
        while True:
            table = np.maximum(table, [rank.whole for rank in self._ranks])
            dealt = deal(table, self.problem.num_extras)
            if dealt is None:
                return None
            if self._ask(dealt):
                continue
            slower = False
            for rank, extras in enumerate(dealt):
                found = self._filled(rank, extras)
                seconds = found[0].seconds if found else np.inf
                slower |= seconds > table[rank, extras] * (1 + 1e-9)
                table[rank, extras:] = np.maximum(table[rank, extras:], seconds)
            if not slower:
                return dealt

    def _settle(self, chosen: list[Filling], dealt: list[int], below: float) -> Partition:
        """The plan of one filling per rank, changed rank by rank, or by an extra block moved from
        one rank to another, as long as that shortens the step."""
        best = self._partition(chosen)
        actions = 2 * len(best.starts) * self.problem.chain.num_microbatches
        left = max(2, min(_TIMELINES, _ACTIONS // actions))
        improved = best.step_time_s < below * _NEAR
        while improved and left:
            improved = False
            for changed in self._changes(chosen, dealt):
                longest = max(filling.seconds for filling in changed.values())
                if longest * self.problem.chain.num_microbatches >= best.step_time_s:
                    continue
                if not left:
                    break
                left -= 1
                tried = [changed.get(rank, filling) for rank, filling in enumerate(chosen)]
                plan = self._partition(tried)
                if plan.step_time_s < best.step_time_s * (1 - 1e-12):
                    best, chosen, improved = plan, tried, True
                    dealt = [
                        sum(filling.sizes) - self.problem.per_rank * self.problem.least_blocks
                        for filling in chosen
                    ]
                    break
        return best

    def _changes(self, chosen: list[Filling], dealt: list[int]) -> Iterator[dict[int, Filling]]:
        """Neighbours of a plan: another filling of a rank, then an extra block from one to another
        with the fillings that are fastest."""
        most = min(self.problem.per_rank, self.problem.num_extras)
        for rank, extras in enumerate(dealt):
            for other in self._filled(rank, extras):
                if other is not chosen[rank]:
                    yield {rank: other}
        for giver, taker in itertools.permutations(range(len(dealt)), 2):
            if dealt[giver] == 0 or dealt[taker] == most:
                continue
            for less in self._filled(giver, dealt[giver] - 1)[:2]:
                for more in self._filled(taker, dealt[taker] + 1)[:2]:
                    yield {giver: less, taker: more}

    def _filled(self, rank: int, extras: int) -> tuple[Filling, ...]:
        if (rank, extras) not in self._fillings:
            self._fillings[rank, extras] = fill(self._blocks_of(rank), extras)
        return self._fillings[rank, extras]

    def _partition(self, chosen: list[Filling]) -> Partition:
        p, v = self.problem.num_ranks, self.problem.per_rank
        stages = [(turn, rank) for turn in range(v) for rank in range(p)]
        starts = starts_of(tuple(chosen[rank].sizes[turn] for turn, rank in stages))
        strategies = tuple(
            strategy for turn, rank in stages for strategy in chosen[rank].strategies[turn]
        )
        return Partition(
            starts=starts,
            strategies=strategies,
            step_time_s=interleaved_step_time(self.problem, starts, strategies),
        )


def interleaved_step_time(
    problem: InterleavedProblem, starts: tuple[int, ...], strategies: tuple[int, ...]
) -> float:
    """Seconds of a step by the event timeline: the last rank's end with its tail."""
    chain, p, v = problem.chain, problem.num_ranks, problem.per_rank
    forward, backward = stage_times(chain, starts, strategies)
    stages = range(len(starts))
    schedule = build_schedule(
        "interleaved", num_ranks=p, num_microbatches=chain.num_microbatches, stages_per_rank=v
    )
    durations = Durations(
        forward_s=tuple(forward.tolist()),
        backward_s=tuple(backward.tolist()),
        send_forward_s=tuple(float(chain.send_forward_s[s, starts[s]]) for s in stages),
        send_backward_s=tuple(float(chain.send_backward_s[s, starts[s]]) for s in stages),
    )
    timeline = simulate(schedule, durations)
    ranges = ranges_of(starts, chain.num_blocks)
    return max(
        timeline.rank_end_s(rank) + problem.tail_s(rank, ranges[rank::p]) for rank in range(p)
    )


def deal(steps: Array, number: int) -> list[int] | None:
    """How many of `number` extra blocks each rank takes so that the largest of its steps is least;
    None where they do not fit.

    steps  [ranks, extra blocks + 1], rising along each row

    >>> deal(np.asarray([[3.0, 5.0], [1.0, 4.0], [2.0, np.inf]]), 2)
    [1, 1, 0]
    """
    dealt = [0] * len(steps)
    if not np.isfinite(steps[:, 0]).all():
        return None
    following = np.column_stack([steps, np.full(len(steps), np.inf)])
    for _ in range(number):
        costs = following[np.arange(len(steps)), np.asarray(dealt) + 1]
        rank = int(np.argmin(costs))
        if not np.isfinite(costs[rank]):
            return None
        dealt[rank] += 1
    return dealt


def _aligned(options: list[tuple[Filling, ...]]) -> list[Filling]:
    """One filling per rank, so that the stages of a turn are about equally long: p micro-batches
    pass all ranks in a turn, and the slowest of its stages holds up the others.

    A descent, rank by rank, on the sum over turns of the ranks' norm.
    """
    times = [np.asarray([filling.stage_seconds for filling in found]) for found in options]
    longest = max(float(table.max()) for table in times)
    powers = [(table / longest) ** _POWER for table in times]
    at = [0] * len(options)
    total = np.sum([table[0] for table in powers], axis=0)
    changed = True
    while changed:
        changed = False
        for rank, table in enumerate(powers):
            rest = total - table[at[rank]]
            costs = (np.maximum(rest + table, 0.0) ** (1 / _POWER)).sum(axis=1)
            to = int(np.argmin(costs))
            if costs[to] < costs[at[rank]] * (1 - 1e-9):
                at[rank], total, changed = to, rest + table[to], True
    return [found[index] for found, index in zip(options, at, strict=True)]


def _cheapest_sums(table: Array, number: int) -> Array:
    """[number + 1] least sum over the rows when so many columns are gone right in all."""
    found = np.full(number + 1, np.inf)
    found[0] = 0.0
    for row in table:
        after = np.full(number + 1, np.inf)
        for extras, seconds in enumerate(row[: number + 1]):
            after[extras:] = np.minimum(after[extras:], found[: number + 1 - extras] + seconds)
        found = after
    return found
