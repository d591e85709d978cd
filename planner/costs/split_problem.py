"""The partition problem of a schedule that splits the backward, or lays its stages in a V.

A chain of blocks is cut into p x v contiguous stages, with one strategy per block; virtual stage s
lies on the rank that the schedule names: s itself with one stage per rank, or there and back again
with two (a V). The objective is the end of the event timeline with each rank's tail
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

from dataclasses import dataclass, replace

import numpy as np

from planner.chain.problem import Array, PartitionProblem, stage_times
from planner.costs.interleaved_problem import InterleavedProblem, ranges_of
from planner.costs.split_moments import split_moments
from profiles.errors import InputError
from simulator.schedules.durations import Durations
from simulator.schedules.schedule import Placement, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitProblem:
    """A chain for the ranks of a schedule; n blocks, S strategies.

    held       the chain's blocks and what ranks hold, as for interleaved stages; each stage's slot
               names the costs and the capacity of its rank. Loads are not read
    schedule   the actions; loop with one stage per rank, or a V with two
    weight_s   [n] for each of the chain's costs: seconds of W; B is I + W, and I is what the
               strategy's backward takes beside W
    weight_bytes   [n, S] for each of the costs: kept from I to W
    forward_transient_bytes   [n, S] for each of the costs: highest bytes while a block runs
               forward, beyond what is saved of its stage up to and including it
    """

    held: InterleavedProblem
    schedule: Schedule
    weight_s: tuple[Array, ...]
    weight_bytes: tuple[Array, ...]
    forward_transient_bytes: tuple[Array, ...]

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
    def chain(self) -> PartitionProblem:
        return self.held.chain

    @property
    def num_ranks(self) -> int:
        return self.schedule.num_ranks

    @property
    def per_rank(self) -> int:
        """Virtual stages of a rank."""
        return self.schedule.num_stages // self.schedule.num_ranks

    def with_capacity(self, more_bytes: float) -> SplitProblem:
        """The same problem with so many bytes more (or, if negative, less) on every device."""
        return replace(self, held=self.held.with_capacity(more_bytes))


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
    ranges: tuple[tuple[int, int], ...],
    stages: tuple[StageFigures, ...],
) -> Array:
    """[K] highest bytes of a rank with these ranges of blocks; each stage has K ways or one."""
    held, schedule = problem.held, problem.schedule
    micro = schedule.num_microbatches
    known = split_moments(schedule.name, problem.num_ranks, micro, problem.per_rank, rank)
    fixed, gradients = held.states(ranges)
    share = gradients / len(ranges)
    arriving, leaving = held.room_for_messages
    crossing = np.zeros(len(ranges))
    for turn, (stage, (i, j)) in enumerate(zip(schedule.stages_of(rank), ranges, strict=True)):
        received, sent = held.crossing(stage, i, j)
        fixed += arriving * received + leaving * sent
        crossing[turn] = (received + sent) * held.holds_sent
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
    at_end = gradients + micro * float(crossing.sum())
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
    sent = problem.held.handed_on_late(stage, start, end)
    back = problem.held.backward_transient_bytes[index][at]
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
        problem.held.tail_s(rank, tuple(ranges[s] for s in problem.schedule.stages_of(rank)))
        for rank in range(problem.num_ranks)
    ]
