"""The partition problem of one cell for blocks with branches: nested ideals in place of prefixes.

All is as in planner/chain/problem.py, but that a cut is an ideal of the blocks' data flow
(chain/block_lattice.py) where there it is a position of the chain: arrays that hold something for
blocks [i, j) there hold it here for the blocks of ideal j without those of ideal i.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.chain.block_lattice import BlockLattice
from planner.chain.problem import Array, BlockCosts, StageSlot
from profiles.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class IdealProblem:
    """Blocks to cut along nested ideals; m ideals, n blocks in the traced order.

    kinds          [n]; blocks of equal kind have equal costs
    static_bytes, tails_s   [m, m] each
    edge_bytes     [m] kept per micro-batch in flight by a stage that begins at an ideal, beyond
                   saved_bytes
    send_forward_s, send_backward_s   [p, m] over the cut before stage s if it is at that ideal
    """

    lattice: BlockLattice
    kinds: tuple[int, ...]
    schedule: str
    num_microbatches: int
    costs: tuple[BlockCosts, ...]
    slots: tuple[StageSlot, ...]
    static_bytes: tuple[Array, ...]
    tails_s: tuple[Array, ...]
    edge_bytes: Array
    send_forward_s: Array
    send_backward_s: Array

    def __post_init__(self) -> None:
        m, p = self.lattice.count, len(self.slots)
        for name, shape in (
            ("edge_bytes", (m,)),
            ("send_forward_s", (p, m)),
            ("send_backward_s", (p, m)),
        ):
            if getattr(self, name).shape != shape:
                raise InputError(f"{name} must have shape {shape}, has {getattr(self, name).shape}")
        if any(array.shape != (m, m) for array in (*self.static_bytes, *self.tails_s)):
            raise InputError(f"static_bytes and tails_s must have shape {(m, m)} each")
        if len(self.kinds) != self.lattice.num_blocks:
            raise InputError(
                f"{len(self.kinds)} kinds for {self.lattice.num_blocks} blocks of the lattice"
            )

    def tail_of(self, stage: int) -> Array:
        """[m, m] seconds after the last backward of a stage."""
        return self.tails_s[self.slots[stage].tail]

    @property
    def num_blocks(self) -> int:
        return self.lattice.num_blocks

    @property
    def num_stages(self) -> int:
        return len(self.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdealPartition:
    """A way to fill the stages: the blocks of each in the traced order, and their strategies."""

    stages: tuple[tuple[int, ...], ...]
    strategies: tuple[tuple[int, ...], ...]
    step_time_s: float

    @property
    def order(self) -> tuple[int, ...]:
        """The blocks, stage by stage."""
        return tuple(block for stage in self.stages for block in stage)

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each stage begins in that order."""
        sizes = [len(stage) for stage in self.stages]
        return tuple(sum(sizes[:s]) for s in range(len(sizes)))
