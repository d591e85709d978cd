"""The problem of an interleaved cell: a chain of blocks for p ranks of v virtual stages each.

Virtual stage s runs on rank s mod p. What counts is a rank's busy time, the sum over its stages,
and one memory for all of them. The space is that of near-even splits: every stage holds n blocks or
n + 1, n being the blocks per stage rounded down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from planner.chain.problem import Array, PartitionProblem, with_capacity

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InterleavedProblem:
    """A chain for p ranks of v stages each.

    chain      the blocks, as for any schedule; its slots are the p * v virtual stages, each with
               the capacity of its rank. Its static_bytes and loads are not read
    num_ranks  p
    states     (fixed, gradient) bytes of a rank that holds these ranges of blocks: what stays all
               step long, and what comes in equal shares with each stage's first backward
    tail_s     seconds of a rank with these ranges after its last backward
    backward_transient_bytes   [n, S] for each of the chain's costs: highest bytes while a block
               runs backward, beyond what is saved up to and including it
    received_bytes, sent_bytes   [n] over the cut before and behind each block
    room_for_messages   messages (of the received, of the sent size) that a stage has room for
    holds_sent    messages of a micro-batch that is done stay to the end of the step
    outputs_counted   what a block hands on is among its saved_bytes, and not in the chain's edges
    """

    chain: PartitionProblem
    num_ranks: int
    states: Callable[[Ranges], tuple[float, float]]
    tail_s: Callable[[int, Ranges], float]
    backward_transient_bytes: tuple[Array, ...]
    received_bytes: Array
    sent_bytes: Array
    room_for_messages: tuple[int, int]
    holds_sent: bool
    outputs_counted: bool = False

    @property
    def per_rank(self) -> int:
        """v"""
        return self.chain.num_stages // self.num_ranks

    def with_capacity(self, more_bytes: float) -> InterleavedProblem:
        """The same problem with so many bytes more (or, if negative, less) on every device."""
        return replace(self, chain=with_capacity(self.chain, more_bytes))

    def stages_of(self, rank: int) -> range:
        """Virtual stages of a rank, in the order of the chain."""
        return range(rank, self.chain.num_stages, self.num_ranks)

    def crossing(self, stage: int, i: int, j: int) -> tuple[float, float]:
        """Bytes per micro-batch over the cuts before and behind a stage of blocks [i, j)."""
        received = float(self.received_bytes[i]) if stage else 0.0
        last = stage == self.chain.num_stages - 1
        return received, 0.0 if last else float(self.sent_bytes[j - 1])

    def handed_on_late(self, stage: int, i: int, j: int) -> float:
        """Bytes of the edge of a stage of blocks [i, j) that are there only behind its blocks."""
        return 0.0 if self.outputs_counted else self.crossing(stage, i, j)[1]


def most_per_stage(num_blocks: int, num_stages: int) -> int:
    """Blocks that a stage of the space holds at most; the others hold one less."""
    return -(-num_blocks // num_stages)


def starts_of(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """First block of each stage."""
    return tuple(accumulate((0, *sizes[:-1])))


def ranges_of(starts: tuple[int, ...], num_blocks: int) -> Ranges:
    """(first block, end) of each stage."""
    return tuple(pairwise((*starts, num_blocks)))
