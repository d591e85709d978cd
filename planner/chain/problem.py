"""The partition problem of one cell: which blocks form which stage, with which strategy each.

A cell fixes the degrees, the micro-batch and the schedule. The partition cuts n blocks into p
stages and chooses one strategy (a recompute kind) per block, so that each stage fits in memory. A
cut is an ideal of the blocks' data flow (chain/ideals.py): in a chain, block i is the first after
cut i.

Symbols
    M        micro-batches per step          p        stages
    w_s      in-flight micro-batches of stage s, from the schedule
    F_s, B_s forward, backward seconds of a stage per micro-batch; T_s = F_s + B_s
    f_s, b_s seconds to send the input of stage s forward, its gradient backward (0 for s = 0)
    tail_s   seconds that stage s needs after its last backward: exposed gradient reduction and
             optimizer

The objective is the longest path through the schedule's order of actions, in closed form:

1f1b    step = the longer of
          sum_s (T_s + f_s + b_s)
            + max over s with M > w_s of [ sum_{j>s} (T_j + f_j + b_j) + (M - w_s) T_s ]
            + max_s [ tail_s - sum_{j<s} (B_j + b_{j+1}) ]
          max_s [ sum_{j<s} (T_j + f_{j+1} + b_{j+1}) + M T_s ] + tail_0
gpipe   step = sum_s (F_s + f_s) + (M-1) max F
            + max_s [ sum_{j>=s} B_j + sum_{j>s} b_j + (M-1) max_{j>=s} B_j + tail_s ]
        (two permutation flow shops of equal jobs, each sum + (M-1) max)

The paths of 1f1b: (1) micro-batch 0 through the stages to stage s, M - w_s rounds there, then the
last micro-batch through the later stages and back to stage 0; (2) to stage s, all its work, and
back. Both exist in every 1f1b timeline, so the objective is a lower bound of the timeline, exact if
the stages' times differ by less than about a third (tests/planner/test_partition.py measures both).
For equal stages it is the known (M + p - 1) T (Narayanan et al., SC'21, section 2.2.1). `sum T +
(M-1) max T`, which other planners minimize, is too high: it counts fill and drain of the stages
after the slowest one as if they were as slow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from planner.chain.ideals import BlockLattice, prefixes
from profiles.errors import InputError

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCosts:
    """The cost of each block on one type of device. n blocks, S strategies.

    forward_s        [n]     per micro-batch; equal for all strategies
    backward_s       [n, S]  per micro-batch, including recomputation
    saved_bytes      [n, S]  kept from forward to backward, per micro-batch in flight
    transient_bytes  [n, S]  highest bytes alive while the block runs, in addition to the saved
                     bytes of the stage's blocks up to and including it
    opening_bytes, opening_saved_bytes   [n, S]  transient_bytes and saved_bytes as the first block
                     of a stage; None if equal
    """

    forward_s: Array
    backward_s: Array
    saved_bytes: Array
    transient_bytes: Array
    opening_bytes: Array | None = None
    opening_saved_bytes: Array | None = None

    @property
    def first_saved_bytes(self) -> Array:
        """[n, S] saved_bytes of a stage's first block."""
        return self.saved_bytes if self.opening_saved_bytes is None else self.opening_saved_bytes

    @property
    def first_transient_bytes(self) -> Array:
        """[n, S] transient_bytes of a stage's first block."""
        return self.transient_bytes if self.opening_bytes is None else self.opening_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A moment of the step at which a stage may need the most memory: static + in_flight x (edge +
    saved) bytes. If `rises`, add the transient bytes of the block that runs.

    static  index of the problem's static_bytes
    """

    in_flight: int
    static: int = 0
    rises: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSlot:
    """A stage to be filled with blocks.

    in_flight  micro-batches whose forward runs before the first backward
    loads      the moments at which its memory must be within the capacity
    costs, tail   indices of the problem's BlockCosts and tails
    forward_s, backward_s   seconds per micro-batch, in addition to those of its blocks
    """

    in_flight: int
    capacity_bytes: float
    loads: tuple[Load, ...]
    costs: int = 0
    tail: int = 0
    forward_s: float = 0.0
    backward_s: float = 0.0

    @property
    def outside_blocks_s(self) -> float:
        """Seconds per micro-batch in addition to those of the stage's blocks."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, kw_only=True)  # no slots: a cached property
class PartitionProblem:
    """Blocks to cut into stages; m cuts (n + 1 in a chain).

    kinds          [n]; blocks of equal kind have equal costs. In a chain, static bytes, tails and
                   edges are equal for equal sequences of kinds, except for its first and last block
    strategies     names of the S strategies
    schedule       `1f1b` or `gpipe`
    static_bytes   [m - 1, m] per moment of the step: memory of a stage between two cuts that does
                   not depend on strategies
    tails_s        [m - 1, m] per type of place: seconds after the last backward of a stage
    edge_bytes     [m - 1, m] kept at the edges of a stage per micro-batch in flight, in addition to
                   saved_bytes; negative if the first block's inputs are counted in its saved_bytes
                   but are kept elsewhere
    send_forward_s, send_backward_s   [p, m - 1]  seconds of a message over a cut before stage s
    ideals         the cuts; None for a chain
    """

    kinds: tuple[int, ...]
    strategies: tuple[str, ...]
    schedule: str
    num_microbatches: int
    costs: tuple[BlockCosts, ...]
    slots: tuple[StageSlot, ...]
    static_bytes: tuple[Array, ...]
    tails_s: tuple[Array, ...]
    edge_bytes: Array
    send_forward_s: Array
    send_backward_s: Array
    ideals: BlockLattice | None = None

    def __post_init__(self) -> None:
        n, s, m = len(self.kinds), len(self.strategies), self.lattice.count
        if self.schedule not in ("1f1b", "gpipe"):
            raise InputError(f"the partition supports 1f1b and gpipe, not {self.schedule!r}")
        if not 1 <= len(self.slots) <= n:
            raise InputError(
                f"{len(self.slots)} stages need a block each, but there are {n} blocks"
            )
        if self.num_microbatches < 1 or s < 1:
            raise InputError("a partition needs at least one micro-batch and one strategy")
        if n != self.lattice.num_blocks:
            raise InputError(f"kinds has {n} entries for {self.lattice.num_blocks} blocks")
        ranges, starts = (m - 1, m), (len(self.slots), m - 1)
        arrays = [
            ("edge_bytes", ranges, (self.edge_bytes,)),
            ("send_forward_s", starts, (self.send_forward_s,)),
            ("send_backward_s", starts, (self.send_backward_s,)),
            ("static_bytes", ranges, self.static_bytes),
            ("tails_s", ranges, self.tails_s),
            ("forward_s", (n,), tuple(costs.forward_s for costs in self.costs)),
            ("backward_s", (n, s), tuple(costs.backward_s for costs in self.costs)),
            ("saved_bytes", (n, s), tuple(costs.saved_bytes for costs in self.costs)),
            ("transient_bytes", (n, s), tuple(costs.transient_bytes for costs in self.costs)),
        ]
        for name, shape, given in arrays:
            for array in given:
                if array.shape != shape:
                    raise InputError(f"{name} must have shape {shape}, has {array.shape}")

    @cached_property
    def lattice(self) -> BlockLattice:
        """The cuts."""
        return self.ideals or prefixes(len(self.kinds))

    def tail_of(self, stage: int) -> Array:
        """[m - 1, m]: seconds after the last backward of a stage between two cuts."""
        return self.tails_s[self.slots[stage].tail]

    def with_capacity(self, more_bytes: float) -> PartitionProblem:
        """The same problem with `more_bytes` more (if negative, less) on every device."""
        slots = tuple(
            replace(slot, capacity_bytes=slot.capacity_bytes + more_bytes) for slot in self.slots
        )
        return replace(self, slots=slots)

    def stages(self, starts: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The blocks of each stage, in traced order, if the stages begin at these cuts."""
        cuts = (*starts, self.lattice.count - 1)
        return [self.lattice.blocks(i, j) for i, j in pairwise(cuts)]

    @property
    def num_blocks(self) -> int:
        return len(self.kinds)

    @property
    def num_stages(self) -> int:
        return len(self.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A solution: the cut before each stage (in a chain, the index of its first block), and the
    strategy index of each block, stage by stage."""

    starts: tuple[int, ...]
    strategies: tuple[int, ...]
    step_time_s: float

    def ends(self) -> tuple[int, ...]:
        """In a chain: the index after the last block of each stage."""
        return (*self.starts[1:], len(self.strategies))


def stage_times(
    problem: PartitionProblem, starts: tuple[int, ...], strategies: tuple[int, ...]
) -> tuple[Array, Array]:
    """Forward and backward seconds per micro-batch of every stage."""
    forward, backward = np.zeros(len(starts)), np.zeros(len(starts))
    begin = 0
    for stage, blocks in enumerate(problem.stages(starts)):
        slot = problem.slots[stage]
        costs = problem.costs[slot.costs]
        at, end = list(blocks), begin + len(blocks)
        forward[stage] = slot.forward_s + costs.forward_s[at].sum()
        backward[stage] = slot.backward_s + costs.backward_s[at, strategies[begin:end]].sum()
        begin = end
    return forward, backward


def step_time(
    problem: PartitionProblem, starts: tuple[int, ...], strategies: tuple[int, ...]
) -> float:
    """The objective of a partition in seconds, by the formulas at the top of this module."""
    forward, backward = stage_times(problem, starts, strategies)
    index = np.asarray(starts)
    ends = np.asarray((*starts[1:], problem.lattice.count - 1))
    stages = np.arange(len(starts))
    down, up = problem.send_forward_s[stages, index], problem.send_backward_s[stages, index]
    down[0] = up[0] = 0.0
    tail = np.asarray([problem.tail_of(s)[index[s], ends[s]] for s in range(len(starts))])
    rounds = problem.num_microbatches - 1
    if problem.schedule == "gpipe":
        reached = np.cumsum((backward + up)[::-1])[::-1] - up
        slowest = np.maximum.accumulate(backward[::-1])[::-1]
        first = float(forward.sum() + down.sum() + rounds * forward.max())
        return first + float((reached + rounds * slowest + tail).max())
    window = np.asarray([slot.in_flight for slot in problem.slots])
    total = forward + backward + down + up
    behind = np.concatenate([np.cumsum(total[::-1])[::-1][1:], [0.0]])
    steady = behind + (problem.num_microbatches - window) * (forward + backward)
    longest = float(steady[problem.num_microbatches > window].max(initial=0.0))
    before_end = np.concatenate([[0.0], np.cumsum(backward[:-1] + up[1:])])
    through = float(total.sum()) + longest + float((tail - before_end).max())
    own = float((rounds * (forward + backward) - behind).max())
    return max(through, float(total.sum()) + own + float(tail[0]))
