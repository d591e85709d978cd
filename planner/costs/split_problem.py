"""The partition problem of a cell whose step time needs the timeline: interleaved stages, stages in
a V, or a split backward.

A chain of blocks is cut into p x v contiguous stages, with one strategy per block; virtual stage s
is on the rank that the schedule names: s itself with one stage per rank, s mod p with several in
turn, or there and back again with two (a V). Interleaved stages hold n blocks or n + 1, n being the
blocks per stage rounded down. The objective is the end of the event timeline with each rank's tail
(schedules/timeline.py), under each rank's memory, action by action (simulator/memory/blocks.py):

    F    what is kept + the stage's own micro-batch, with the rise of its forward
    B, I   what is kept, with the rise of its backward, in which what W needs of one block after the
         other is set aside; at a stage's first of them its gradients come while the last of its
         blocks runs
    W    what is kept
    end  parameters, optimizer states and gradients

with the messages that are under way. Ranks run their actions in order whatever these take, so that
memory needs no timeline (simulator/memory/moments.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from planner.chain.problem import Array, PartitionProblem, stage_times
from profiles.errors import InputError
from simulator.memory.moments import rank_moments
from simulator.schedules.action import ActionKind
from simulator.schedules.durations import Durations
from simulator.schedules.schedule import Placement, Schedule, build_schedule, schedule_kind

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitProblem:
    """A chain for the ranks of a schedule; n blocks, S strategies.

    chain      the blocks, as for any schedule; its slots are the virtual stages, each with the
               costs and the capacity of its rank. Its static_bytes, tails and loads are not read
    schedule   the actions; stages in turn, or a V with two
    states     (fixed, gradient) bytes of a rank that holds these ranges of blocks: what stays all
               step long, and what comes in equal shares with each stage's first backward
    exchange   bytes that come and go behind its last backward
    tail_s     seconds of a rank with these ranges after its last backward
    early      receives are posted early (simulator/memory/moments.py, rank_moments)
    over_bytes   [n + 1] per micro-batch over each cut; 0 at both ends
    outputs_counted   what a block hands on is among its saved_bytes, and not in the chain's edges

    of each of the chain's costs:
    weight_s   [n] seconds of W; B is I + W, and I is what the strategy's backward takes beside W
    weight_bytes   [n, S] kept from I to W
    forward_transient_bytes, backward_transient_bytes   [n, S] highest bytes while a block runs,
               beyond what is saved of its stage up to and including it
    opening_forward_bytes, opening_backward_bytes   [n, S] the same of a stage's first block
    """

    chain: PartitionProblem
    schedule: Schedule
    states: Callable[[Ranges], tuple[float, float]]
    exchange: Callable[[Ranges], float]
    tail_s: Callable[[int, Ranges], float]
    over_bytes: Array
    early: bool = False
    outputs_counted: bool = False
    weight_s: tuple[Array, ...]
    weight_bytes: tuple[Array, ...]
    forward_transient_bytes: tuple[Array, ...]
    backward_transient_bytes: tuple[Array, ...]
    opening_forward_bytes: tuple[Array, ...]
    opening_backward_bytes: tuple[Array, ...]

    def __post_init__(self) -> None:
        chain, schedule = self.chain, self.schedule
        if (schedule.num_stages, schedule.num_microbatches) != (
            chain.num_stages,
            chain.num_microbatches,
        ):
            raise InputError(
                f"the schedule has {schedule.num_stages} stages and {schedule.num_microbatches} "
                f"micro-batches, the chain is for {chain.num_stages} and {chain.num_microbatches}"
            )
        if schedule.copies > 1 or (
            self.per_rank > 2 and schedule_kind(schedule.name).placement is Placement.V
        ):
            raise InputError(
                f"{schedule.name} with {self.per_rank} stages per rank and {schedule.copies} "
                "copies of the model is neither stages in turn nor a V of two"
            )
        for costs, seconds in zip(chain.costs, self.weight_s, strict=True):
            if np.any(seconds > costs.backward_s.min(axis=1) * (1 + 1e-12)) or np.any(seconds < 0):
                raise InputError("weight_s must be between 0 and the backward seconds of a block")

    @property
    def num_ranks(self) -> int:
        return self.schedule.num_ranks

    @property
    def per_rank(self) -> int:
        """Virtual stages of a rank."""
        return self.schedule.num_stages // self.schedule.num_ranks

    def with_capacity(self, more_bytes: float) -> SplitProblem:
        """The same problem with this many bytes more (or, if negative, less) on every device."""
        return replace(self, chain=self.chain.with_capacity(more_bytes))


def ranges_of(starts: tuple[int, ...], num_blocks: int) -> Ranges:
    """(first block, end) of each stage."""
    return tuple(pairwise((*starts, num_blocks)))


def split_durations(
    problem: SplitProblem, starts: tuple[int, ...], strategies: tuple[int, ...]
) -> Durations:
    """Seconds of every action of a partition."""
    chain = problem.chain
    forward, backward = stage_times(chain, starts, strategies)
    ends = (*starts[1:], chain.num_blocks)
    weight = [
        float(problem.weight_s[chain.slots[s].costs][i:j].sum())
        for s, (i, j) in enumerate(zip(starts, ends, strict=True))
    ]
    stages = range(len(starts))
    return Durations(
        forward_s=tuple(forward.tolist()),
        backward_s=tuple(backward.tolist()),
        send_forward_s=tuple(float(chain.send_forward_s[s, starts[s]]) for s in stages),
        send_backward_s=tuple(float(chain.send_backward_s[s, starts[s]]) for s in stages),
        backward_input_s=tuple((backward - np.asarray(weight)).tolist()),
        backward_weight_s=tuple(weight),
    )


def split_tails(problem: SplitProblem, starts: tuple[int, ...]) -> list[float]:
    """Seconds of every rank after its last action."""
    ranges = ranges_of(starts, problem.chain.num_blocks)
    return [
        problem.tail_s(rank, tuple(ranges[s] for s in problem.schedule.stages_of(rank)))
        for rank in range(problem.num_ranks)
    ]


Counts = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitMoments:
    """The different moments of a rank of v stages (simulator/memory/moments.py), as arrays.

    whole, half, arriving, returning, leaving   [moments, v]
    turn, first, begun   [moments];  backward  True for B and I;  weights  for W
    """

    whole: Counts
    half: Counts
    arriving: Counts
    returning: Counts
    leaving: Counts
    turn: Counts
    backward: Counts
    weights: Counts
    first: Counts
    begun: Counts


@functools.cache
def split_moments(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    stages_per_rank: int,
    rank: int,
    *,
    early: bool = False,
) -> SplitMoments:
    """The different moments of a rank of the schedule `name`."""
    schedule = build_schedule(
        name,
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        stages_per_rank=stages_per_rank,
    )
    different = tuple(dict.fromkeys(rank_moments(schedule, early=early)[rank]))
    whole, half, arriving, returning, leaving, turn, kind, first, begun = zip(
        *different, strict=True
    )
    backward = [each in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT) for each in kind]
    weights = [each is ActionKind.BACKWARD_WEIGHT for each in kind]
    figures = (whole, half, arriving, returning, leaving, turn, backward, weights, first, begun)
    return SplitMoments(**dict(zip(_FIGURES, map(_counts, figures), strict=True)))


_FIGURES = tuple(field.name for field in fields(SplitMoments))


def _counts(figure: Sequence[object]) -> Counts:
    return np.asarray(figure, dtype=np.intp)


class RankBytes:
    """Memory of a rank with these ranges of blocks; parts that do not depend on strategies are
    computed once.

    ranges  of each of the rank's stages, in order

    The moments are those at the top of planner/costs/split_problem.py.
    """

    def __init__(self, problem: SplitProblem, rank: int, ranges: Ranges) -> None:
        schedule, chain = problem.schedule, problem.chain
        micro, stages = schedule.num_microbatches, schedule.stages_of(rank)
        self._known = split_moments(
            schedule.name, problem.num_ranks, micro, problem.per_rank, rank, early=problem.early
        )
        sizes = [j - i for i, j in ranges]
        self._firsts = np.cumsum([0, *sizes[:-1]])
        self._stage_of = np.repeat(np.arange(len(ranges)), sizes)
        self._rows = np.arange(sum(sizes))
        places = [(chain.slots[s].costs, i, j) for s, (i, j) in zip(stages, ranges, strict=True)]

        def gathered(tables: Sequence[Array], opening: Sequence[Array] | None = None) -> Array:
            """[blocks of the rank, S]; opening  tables for the first block of each stage"""
            first = opening or tables
            rows = [(first[index][i : i + 1], tables[index][i + 1 : j]) for index, i, j in places]
            return np.concatenate([table for pair in rows for table in pair])

        self._saved = gathered([costs.saved_bytes for costs in chain.costs])
        self._weights = gathered(problem.weight_bytes)
        self._forward = gathered(problem.forward_transient_bytes, problem.opening_forward_bytes)
        self._backward = gathered(problem.backward_transient_bytes, problem.opening_backward_bytes)
        self._edge = np.asarray([chain.edge_bytes[i, j] for i, j in ranges])
        # Received and sent per micro-batch; what is sent is there only behind a stage's blocks,
        # where it is counted in the chain's edges.
        received, sent = problem.over_bytes[np.asarray(ranges)].T
        self._late = sent * (not problem.outputs_counted)
        # What the earlier stage of the same rank hands on is counted there.
        rank_of = schedule.stage_to_rank
        remote = np.asarray([s == 0 or rank_of[s - 1] != rank for s in stages])
        self._edge -= received * ~remote
        known = self._known
        self._fixed, gradients = problem.states(ranges)
        self._share = gradients / len(ranges)
        messages = (known.arriving + known.leaving) @ received + known.returning @ sent
        messages = messages + float(sent.sum()) * problem.outputs_counted
        self._without = self._share * known.begun + messages
        # The last gradients are being sent until the step ends.
        self._at_end = gradients + problem.exchange(ranges) + float(received[remote].sum())

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
