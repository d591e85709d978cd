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
    exchange   bytes that come and go behind its last backward
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
    exchange: Callable[[Ranges], float]
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
