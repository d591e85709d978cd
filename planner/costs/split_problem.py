"""The partition problem of a cell whose step only the timeline tells: ranks that hold several
stages in turn or in a V, or split the backward.

A chain of blocks is cut into p x v contiguous stages, with one strategy per block; virtual stage s
lies on the rank that the schedule names: s itself with one stage per rank, s mod p with several in
turn, or there and back again with two (a V). Interleaved stages hold n blocks or n + 1, n being the
blocks per stage rounded down. The objective is the end of the event timeline with each rank's tail
(schedules/timeline.py), under each rank's memory, action by action (traced/memory.py):

    F    what is kept + the stage's own micro-batch, with the rise of its forward
    B, I   what is kept, with the rise of its backward, in which what W needs of one block after the
         other is set aside; at a stage's first of them its gradients come while the last of its
         blocks runs
    W    what is kept
    end  parameters, optimizer states and gradients, with what was sent where that is held

From its I to its W a micro-batch keeps what its weights' gradients need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from planner.chain.problem import Array, PartitionProblem, stage_times, with_capacity
from planner.costs.split_moments import split_moments
from profiles.errors import InputError
from simulator.schedules.durations import Durations
from simulator.schedules.schedule import Placement, Schedule

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitProblem:
    """A chain for the ranks of a schedule; n blocks, S strategies.

    chain      the blocks, as for any schedule; its slots are the virtual stages, each with the
               costs and the capacity of its rank. Its static_bytes, tails and loads are not read
    schedule   the actions; stages in turn, or a V with two
    states     (fixed, gradient) bytes of a rank that holds these ranges of blocks: what stays all
               step long, and what comes in equal shares with each stage's first backward
    update     bytes that come and go behind its last backward
    tail_s     seconds of a rank with these ranges after its last backward
    received_bytes, sent_bytes   [n] over the cut before and behind each block
    room_for_messages   messages (of the received, of the sent size) that a stage has room for
    holds_sent    messages of a micro-batch that is done stay to the end of the step
    outputs_counted   what a block hands on is among its saved_bytes, and not in the chain's edges

    of each of the chain's costs:
    weight_s   [n] seconds of W; B is I + W, and I is what the strategy's backward takes beside W
    weight_bytes   [n, S] kept from I to W
    forward_transient_bytes, backward_transient_bytes   [n, S] highest bytes while a block runs,
               beyond what is saved of its stage up to and including it
    """

    chain: PartitionProblem
    schedule: Schedule
    states: Callable[[Ranges], tuple[float, float]]
    update: Callable[[Ranges], float]
    tail_s: Callable[[int, Ranges], float]
    received_bytes: Array
    sent_bytes: Array
    room_for_messages: tuple[int, int]
    holds_sent: bool
    outputs_counted: bool = False
    weight_s: tuple[Array, ...]
    weight_bytes: tuple[Array, ...]
    forward_transient_bytes: tuple[Array, ...]
    backward_transient_bytes: tuple[Array, ...]

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
        if schedule.copies > 1 or (self.per_rank > 2 and schedule.placement is Placement.V):
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
        """The same problem with so many bytes more (or, if negative, less) on every device."""
        return replace(self, chain=with_capacity(self.chain, more_bytes))

    def crossing(self, stage: int, i: int, j: int) -> tuple[float, float]:
        """Bytes per micro-batch over the cuts before and behind a stage of blocks [i, j)."""
        received = float(self.received_bytes[i]) if stage else 0.0
        last = stage == self.chain.num_stages - 1
        return received, 0.0 if last else float(self.sent_bytes[j - 1])

    def handed_on_late(self, stage: int, i: int, j: int) -> float:
        """Bytes of the edge of a stage of blocks [i, j) that are there only behind its blocks."""
        return 0.0 if self.outputs_counted else self.crossing(stage, i, j)[1]


def most_per_stage(num_blocks: int, num_stages: int) -> int:
    """Blocks that an interleaved stage holds at most; the others hold one less."""
    return -(-num_blocks // num_stages)


def starts_of(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """First block of each stage."""
    return tuple(accumulate((0, *sizes[:-1])))


def ranges_of(starts: tuple[int, ...], num_blocks: int) -> Ranges:
    """(first block, end) of each stage."""
    return tuple(pairwise((*starts, num_blocks)))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFigures:
    """Ways to run one stage, K of them.

    kept_bytes, half_bytes   [K] per micro-batch: from F to I, from I to W
    forward_rise_bytes, backward_rise_bytes   [K] above what is kept while it runs
    first_bytes   [K] while the backward of its first block runs, beyond other micro-batches
    """

    kept_bytes: Array
    half_bytes: Array
    forward_rise_bytes: Array
    backward_rise_bytes: Array
    first_bytes: Array


def rank_peaks(
    problem: SplitProblem,
    rank: int,
    ranges: Ranges,
    stages: tuple[StageFigures, ...],
) -> Array:
    """[K] highest bytes of a rank with these ranges of blocks; each stage has K ways or one."""
    schedule = problem.schedule
    micro = schedule.num_microbatches
    known = split_moments(schedule.name, problem.num_ranks, micro, problem.per_rank, rank)
    fixed, gradients = problem.states(ranges)
    share = gradients / len(ranges)
    arriving, leaving = problem.room_for_messages
    crossing = np.zeros(len(ranges))
    for turn, (stage, (i, j)) in enumerate(zip(schedule.stages_of(rank), ranges, strict=True)):
        received, sent = problem.crossing(stage, i, j)
        fixed += arriving * received + leaving * sent
        crossing[turn] = (received + sent) * problem.holds_sent
    count = max(way.kept_bytes.size for way in stages)
    need = np.zeros((count, len(known.turn))) + share * known.begun + known.done @ crossing
    other = np.zeros_like(need)
    for turn, way in enumerate(stages):
        kept = way.kept_bytes[:, None]
        need = need + kept * known.whole[:, turn] + way.half_bytes[:, None] * known.half[:, turn]
        mine = known.turn == turn
        rise = np.where(
            known.backward, way.backward_rise_bytes[:, None], way.forward_rise_bytes[:, None]
        )
        rise = np.where(known.weights, 0.0, rise)
        first = share + way.first_bytes[:, None] - kept
        rise = np.maximum(np.maximum(rise, 0.0), np.where(known.first, first, 0.0))
        other = other + mine * rise
    at_end = gradients + micro * float(crossing.sum()) + problem.update(ranges)
    return np.asarray(fixed + np.maximum((need + other).max(axis=1), at_end))


def stage_figures(
    problem: SplitProblem, stage: int, start: int, strategies: tuple[int, ...]
) -> StageFigures:
    """The one way to run a stage of blocks from `start` with these strategies."""
    chain = problem.chain
    index = chain.slots[stage].costs
    end = start + len(strategies)
    at = (np.arange(start, end), np.asarray(strategies))
    saved = chain.costs[index].saved_bytes[at]
    weights = problem.weight_bytes[index][at]
    behind, aside = (
        np.concatenate([np.cumsum(figures[::-1])[::-1][1:], [0.0]]) for figures in (saved, weights)
    )
    edge = float(chain.edge_bytes[start, end])
    sent = problem.handed_on_late(stage, start, end)
    back = problem.backward_transient_bytes[index][at]
    # The edge is what is handed on, less an input that lies in a buffer of its own.
    return StageFigures(
        kept_bytes=np.asarray([saved.sum() + edge]),
        half_bytes=np.asarray([weights.sum()]),
        forward_rise_bytes=np.asarray(
            [(problem.forward_transient_bytes[index][at] - behind).max() - sent]
        ),
        backward_rise_bytes=np.asarray([(back - behind + aside).max()]),
        first_bytes=np.asarray([saved[0] + back[0] + aside[0] + edge - sent]),
    )


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
