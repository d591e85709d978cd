"""Bytes of a rank that holds some stages of a chain, under any strategies of their blocks."""

from __future__ import annotations

import numpy as np

from planner.chain.problem import Array
from planner.costs.split_moments import Counts, split_moments
from planner.costs.split_problem import Ranges, SplitProblem


class RankBytes:
    """What a rank with these ranges of blocks needs; what no strategy changes is found once.

    ranges  of each of the rank's stages, in their order

    The moments are those at the top of planner/costs/split_problem.py.
    """

    def __init__(self, problem: SplitProblem, rank: int, ranges: Ranges) -> None:
        schedule, chain = problem.schedule, problem.chain
        micro, stages = schedule.num_microbatches, schedule.stages_of(rank)
        self._known = split_moments(schedule.name, problem.num_ranks, micro, problem.per_rank, rank)
        sizes = [j - i for i, j in ranges]
        self._firsts = np.cumsum([0, *sizes[:-1]])
        self._stage_of = np.repeat(np.arange(len(ranges)), sizes)
        self._rows = np.arange(sum(sizes))
        places = [(chain.slots[s].costs, i, j) for s, (i, j) in zip(stages, ranges, strict=True)]

        def gathered(tables: list[Array]) -> Array:
            """[blocks of the rank, S]"""
            return np.concatenate([tables[index][i:j] for index, i, j in places])

        self._saved = gathered([costs.saved_bytes for costs in chain.costs])
        self._weights = gathered(list(problem.weight_bytes))
        self._forward = gathered(list(problem.forward_transient_bytes))
        self._backward = gathered(list(problem.backward_transient_bytes))
        self._edge = np.asarray([chain.edge_bytes[i, j] for i, j in ranges])
        self._late = np.asarray(
            [problem.handed_on_late(s, i, j) for s, (i, j) in zip(stages, ranges, strict=True)]
        )
        crossing = np.asarray(
            [problem.crossing(s, i, j) for s, (i, j) in zip(stages, ranges, strict=True)]
        )
        fixed, gradients = problem.states(ranges)
        self._share = gradients / len(ranges)
        held = crossing.sum(axis=1) * problem.holds_sent
        self._fixed = fixed + float((crossing @ np.asarray(problem.room_for_messages)).sum())
        self._without = self._share * self._known.begun + self._known.done @ held
        self._at_end = gradients + micro * float(held.sum()) + problem.exchange(ranges)

    def peak(self, strategies: tuple[int, ...] | Counts) -> float:
        """The most bytes at any moment; strategies [blocks of the rank], stage by stage."""
        at = (self._rows, np.asarray(strategies))
        saved, weights = self._saved[at], self._weights[at]
        forward, backward = self._forward[at], self._backward[at]
        known, firsts = self._known, self._firsts
        kept, half = np.add.reduceat(saved, firsts), np.add.reduceat(weights, firsts)
        # Of each block, what the blocks behind it in its stage keep.
        behind = np.cumsum(kept)[self._stage_of] - np.cumsum(saved)
        aside = np.cumsum(half)[self._stage_of] - np.cumsum(weights)
        # The edge is what is handed on, less an input that lies in a buffer of its own.
        whole = kept + self._edge
        ahead = np.maximum.reduceat(forward - behind, firsts) - self._late
        back = np.maximum.reduceat(backward - behind + aside, firsts)
        begin = saved[firsts] + backward[firsts] + aside[firsts] + self._edge - self._late
        turn = known.turn
        rise = np.where(known.backward, back[turn], ahead[turn])
        rise = np.maximum(np.where(known.weights, 0.0, rise), 0.0)
        rise = np.maximum(rise, np.where(known.first, (self._share + begin - whole)[turn], 0.0))
        need = self._without + known.whole @ whole + known.half @ half + rise
        return self._fixed + max(float(need.max()), self._at_end)
