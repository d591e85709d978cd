"""The partition problem of a cell whose step time needs the timeline: interleaved stages, stages in
a V, or a split backward.

A chain of blocks is cut into p x v contiguous stages, with one strategy per block. The schedule
assigns virtual stages to ranks: stage s to rank s mod p, or, in a V with two stages per rank,
forward over the ranks and back. Interleaved stages have n or n + 1 blocks, where n is the number of
blocks per stage, rounded down. The objective is the end of the event timeline including each rank's
tail (schedules/timeline.py). The constraint is each rank's memory during every action
(simulator/memory/blocks.py):

    F      kept bytes + the stage's own micro-batch + transient bytes of its forward
    B, I   kept bytes + transient bytes of its backward, including what W will need of finished
           blocks; a stage's first B or I also allocates its gradients while its last block runs
    W      kept bytes
    end    parameters, optimizer states and gradients

Messages in transit are added. Ranks run their actions in a fixed order, so memory does not depend
on their times (simulator/memory/moments.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from planner.chain.problem import Array, PartitionProblem, stage_times
from profiles.errors import InputError
from simulator.memory.moments import Moment, rank_moments
from simulator.schedules.action import ActionKind
from simulator.schedules.durations import Durations
from simulator.schedules.schedule import Placement, Schedule, build_schedule, schedule_kind

Ranges = tuple[tuple[int, int], ...]
_BACKWARDS = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitProblem:
    """The partition of a chain over the ranks of a schedule; n blocks, S strategies.

    chain      the blocks, as for other schedules. Its slots are the virtual stages, with the costs
               and capacity of their rank; its static_bytes, tails and loads are not used
    schedule   the actions of round-robin stages, or of a V with two stages per rank
    states     (fixed, gradient) bytes of a rank with these ranges of blocks; the gradients are
               allocated in equal parts, one with each stage's first backward
    exchange   temporary bytes after a rank's last backward
    tail_s     seconds of a rank with these ranges after its last backward
    early      receives are posted early (simulator/memory/moments.py, rank_moments)
    over_bytes   [n + 1] per micro-batch over each cut; 0 at both ends
    outputs_counted   a block's outputs are in its saved_bytes, not in the chain's edges

    One entry for each of the chain's costs:
    weight_s   [n] seconds of W; I takes the rest of the strategy's backward
    weight_bytes   [n, S] kept from I to W
    forward_transient_bytes, backward_transient_bytes   [n, S] highest bytes while a block runs,
                                                        above the saved bytes of its stage up to and
                                                        including this block
    opening_forward_bytes, opening_backward_bytes   [n, S] the same for a stage's first block
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
                f"stages must be placed round-robin, or in a V with two stages per rank; "
                f"{schedule.name} has {self.per_rank} per rank and {schedule.copies} copies of the "
                "model"
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
    """The distinct moments of a rank of v stages, as arrays (simulator/memory/moments.py).

    whole, half, arriving, returning, leaving   [moments, v]
    turn, first, begun   [moments]
    backward, weights    [moments] 1 during B or I, and during W
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
    """The distinct moments of a rank of the schedule `name`."""
    schedule = build_schedule(
        name,
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        stages_per_rank=stages_per_rank,
    )
    different = tuple(dict.fromkeys(rank_moments(schedule, early=early)[rank]))
    figures = dict(zip(Moment._fields, zip(*different, strict=True), strict=True))
    kinds = figures.pop("kind")
    figures["backward"] = tuple(each in _BACKWARDS for each in kinds)
    figures["weights"] = tuple(each is ActionKind.BACKWARD_WEIGHT for each in kinds)
    return SplitMoments(**{k: np.asarray(each, dtype=np.intp) for k, each in figures.items()})


class RankBytes:
    """Memory of a rank with these ranges of blocks; values that do not depend on strategies are
    computed once.

    ranges  one per stage of the rank, in order

    The moments are listed at the top of planner/costs/split_problem.py.
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
            """[blocks of the rank, S]; `opening` replaces `tables` for each stage's first block."""
            first = opening or tables
            rows = [(first[index][i : i + 1], tables[index][i + 1 : j]) for index, i, j in places]
            return np.concatenate([table for pair in rows for table in pair])

        self._saved = gathered(
            [costs.saved_bytes for costs in chain.costs],
            [costs.first_saved_bytes for costs in chain.costs],
        )
        self._weights = gathered(problem.weight_bytes)
        self._forward = gathered(problem.forward_transient_bytes, problem.opening_forward_bytes)
        self._backward = gathered(problem.backward_transient_bytes, problem.opening_backward_bytes)
        self._edge = np.asarray([chain.edge_bytes[i, j] for i, j in ranges])
        # Received and sent per micro-batch. Sent bytes exist only after the stage's blocks have
        # run, and are counted in the chain's edges.
        received, sent = problem.over_bytes[np.asarray(ranges)].T
        self._late = sent * (not problem.outputs_counted)
        # Outputs of an earlier stage on the same rank are counted with that stage.
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
        """Highest bytes of all moments; strategies [blocks of the rank], stage by stage."""
        at = (self._rows, np.asarray(strategies))
        saved, weights = self._saved[at], self._weights[at]
        forward, backward = self._forward[at], self._backward[at]
        known, firsts = self._known, self._firsts
        kept, half = np.add.reduceat(saved, firsts), np.add.reduceat(weights, firsts)
        # For each block: the bytes kept by later blocks of its stage.
        behind = np.cumsum(kept)[self._stage_of] - np.cumsum(saved)
        aside = np.cumsum(half)[self._stage_of] - np.cumsum(weights)
        # The edge: the stage's outputs, less an input that has its own buffer.
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
