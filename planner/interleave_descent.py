"""A good near-even split of a chain of unlike blocks for the interleaved schedule.

From extra blocks spread evenly, a descent moves one of them from the busiest rank to another;
inside a split each rank's strategies are chosen exactly (the labels of planner/stage_labels.py over
all blocks of the rank, each weighted with the micro-batches in flight of its stage). The result is
a good plan, not a proven one.

The descent's measure is M max_r R_r + (p - 1) mean T: the busiest rank and the fill and drain of
interleaved 1f1b (Narayanan et al., SC'21, section 2.2.2), R_r the busy time of rank r per
micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from planner.interleaved_problem import InterleavedProblem, most_per_stage
from planner.problem import BlockCosts, Load, Partition, PartitionProblem
from planner.stage_labels import StageLabels

_ROUNDS = 64  # blocks moved at most; the descent starts even and ends far earlier
_ROUNDS_IN_MEMORY = 2  # after that without memory, which finds the split; each costs p x v fillings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    measure: float
    busiest: int
    starts: tuple[int, ...]
    strategies: tuple[int, ...]


def descend(problem: InterleavedProblem) -> Partition | None:
    """A good partition, its step time the measure above; None where no tried split fits."""
    ranks = _Ranks(problem)
    even = _even_starts(problem.chain.num_blocks, problem.chain.num_stages)
    freely = _improve(problem, even, ranks.fill_freely, rounds=_ROUNDS)
    assert freely is not None  # nothing limits it
    best = _improve(problem, freely.starts, ranks.fill, rounds=_ROUNDS_IN_MEMORY)
    if best is None:
        return None
    return Partition(starts=best.starts, strategies=best.strategies, step_time_s=best.measure)


def _improve(
    problem: InterleavedProblem,
    starts: tuple[int, ...],
    fill: Callable[[tuple[int, ...]], _Split | None],
    *,
    rounds: int,
) -> _Split | None:
    """From a split to a better neighbour as long as there is one; None where the first is none."""
    best = fill(starts)
    if best is None:
        return None
    for _ in range(rounds):
        better = best
        for neighbour in _relieved(best, problem.chain, problem.num_ranks):
            found = fill(neighbour)
            if found is not None and found.measure < better.measure * (1 - 1e-12):
                better = found
        if better is best:
            break
        best = better
    return best


def _relieved(split: _Split, chain: PartitionProblem, num_ranks: int) -> Iterator[tuple[int, ...]]:
    """Splits in which a stage of the busiest rank gives its extra block to another rank."""
    most = most_per_stage(chain.num_blocks, chain.num_stages)
    sizes = [j - i for i, j in pairwise((*split.starts, chain.num_blocks))]
    for giver in range(split.busiest, chain.num_stages, num_ranks):
        for taker in range(chain.num_stages):
            if taker % num_ranks == split.busiest:
                continue
            if sizes[giver] < most or sizes[taker] == most or most * len(sizes) == sum(sizes):
                continue
            moved = [*sizes]
            moved[giver] -= 1
            moved[taker] += 1
            yield tuple(accumulate((0, *moved[:-1])))


def _even_starts(num_blocks: int, num_stages: int) -> tuple[int, ...]:
    return tuple(num_blocks * stage // num_stages for stage in range(num_stages))


class _Ranks:
    """Fills the ranks of a split with strategies; equal ranks are filled once."""

    def __init__(self, problem: InterleavedProblem) -> None:
        self.problem = problem
        fastest = [c.forward_s + c.backward_s.min(axis=1) for c in problem.chain.costs]
        self.before = [np.concatenate([[0.0], np.cumsum(times)]).tolist() for times in fastest]
        self.known: dict[tuple[object, ...], tuple[float, float, tuple[int, ...]] | None] = {}

    def fill_freely(self, starts: tuple[int, ...]) -> _Split:
        """The split with every block at its fastest, whatever the memory."""
        chain, p = self.problem.chain, self.problem.num_ranks
        busy = [0.0] * p
        for stage, (i, j) in enumerate(pairwise((*starts, chain.num_blocks))):
            before = self.before[chain.slots[stage].costs]
            busy[stage % p] += before[j] - before[i]
        return self._split(starts, busy, ())

    def _split(
        self, starts: tuple[int, ...], busy: list[float], strategies: tuple[int, ...]
    ) -> _Split:
        chain, p = self.problem.chain, self.problem.num_ranks
        fill_s = (p - 1) * sum(busy) / chain.num_stages
        return _Split(
            measure=chain.num_microbatches * max(busy) + fill_s,
            busiest=busy.index(max(busy)),
            starts=starts,
            strategies=strategies,
        )

    def fill(self, starts: tuple[int, ...]) -> _Split | None:
        """The split with each rank's fastest strategies that fit; None where a rank has none."""
        chain, p = self.problem.chain, self.problem.num_ranks
        ends = (*starts[1:], chain.num_blocks)
        busy: list[float] = []
        strategies: dict[int, int] = {}
        for rank in range(p):
            stages = range(rank, chain.num_stages, p)
            filled = self._rank(stages, starts, ends)
            if filled is None:
                return None
            forward, backward, chosen = filled
            busy.append(forward + backward)
            blocks = [block for s in stages for block in range(starts[s], ends[s])]
            strategies.update(zip(blocks, chosen, strict=True))
        return self._split(
            starts, busy, tuple(strategies[block] for block in range(chain.num_blocks))
        )

    def _rank(
        self, stages: range, starts: tuple[int, ...], ends: tuple[int, ...]
    ) -> tuple[float, float, tuple[int, ...]] | None:
        """Forward and backward seconds and strategies of a rank's blocks; None: does not fit."""
        chain = self.problem.chain
        last = chain.num_stages - 1
        key = tuple(
            (s == 0, s == last, chain.slots[s], chain.kinds[starts[s] : ends[s]]) for s in stages
        )
        if key not in self.known:
            self.known[key] = self._choose(stages, starts, ends)
        return self.known[key]

    def _choose(
        self, stages: range, starts: tuple[int, ...], ends: tuple[int, ...]
    ) -> tuple[float, float, tuple[int, ...]] | None:
        chain = self.problem.chain
        costs = chain.costs[chain.slots[stages[0]].costs]
        blocks = np.asarray([block for s in stages for block in range(starts[s], ends[s])])
        weight = np.asarray(
            [chain.slots[s].in_flight for s in stages for _ in range(starts[s], ends[s])]
        )
        names = [(chain.kinds[b], int(w)) for b, w in zip(blocks, weight, strict=True)]
        number = {name: index for index, name in enumerate(dict.fromkeys(names))}
        weighted = BlockCosts(
            forward_s=costs.forward_s[blocks],
            backward_s=costs.backward_s[blocks],
            saved_bytes=costs.saved_bytes[blocks] * weight[:, None],
            transient_bytes=costs.transient_bytes[blocks],
        )
        fixed = self._fixed_bytes(stages, starts, ends)
        kinds = tuple(number[name] for name in names)
        labels = StageLabels(kinds, weighted, chain.reshard_s, ordered=False)
        node = labels.of(0, len(blocks))
        budget = chain.slots[stages[0]].capacity_bytes - fixed
        label = node.cheapest([(Load(in_flight=1), budget)])
        if label < 0:
            return None
        forward = float(weighted.forward_s.sum())
        return forward, float(node.backward_s[label]), node.strategies(label)

    def _fixed_bytes(self, stages: range, starts: tuple[int, ...], ends: tuple[int, ...]) -> float:
        """Bytes of a rank in its fullest moment that do not depend on strategies."""
        problem = self.problem
        ranges = tuple((starts[s], ends[s]) for s in stages)
        fixed = sum(problem.states(ranges))
        arriving, leaving = problem.room_for_messages
        micro = problem.chain.num_microbatches
        for stage, (i, j) in zip(stages, ranges, strict=True):
            kept = problem.chain.slots[stage].in_flight
            received, sent = problem.crossing(stage, i, j)
            fixed += arriving * received + leaving * sent
            fixed += kept * float(problem.chain.edge_bytes[i, j])
            fixed += (micro - kept) * problem.holds_sent * (received + sent)
        return fixed
