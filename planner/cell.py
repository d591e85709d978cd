"""A cell of the search block by block: one choice of degrees, ZeRO stage, micro-batch and schedule.

Inside a cell, the partition of blocks into stages and the recomputation of each block are open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.schedules.schedule import schedule_kind
from simulator.values.degrees import Degrees
from simulator.values.plan_title import plan_title


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cell:
    """Degrees and schedule of a plan; `global_batch` is that of the workload."""

    degrees: Degrees
    zero_stage: int
    micro_batch: int
    schedule: str
    global_batch: int

    def with_replicas(self, count: int) -> Cell:
        """The same cell with another number of replicas."""
        return replace(self, degrees=replace(self.degrees, dp=count))

    @property
    def num_microbatches(self) -> int:
        """Micro-batches per step and replica."""
        return self.global_batch // (self.degrees.dp * self.micro_batch)

    @property
    def pipelined(self) -> bool:
        """Whether the plan has a pipeline: gradients are exchanged once per step, and parameters
        stay gathered."""
        return self.degrees.pp > 1

    @property
    def shares(self) -> int:
        """Number of replicas over which a weight's states are sharded, as in `Plan.shares`."""
        return self.degrees.shard_replicas if self.zero_stage else 1

    def rank_of(self, stage: int) -> int:
        """Pipeline rank of a virtual stage."""
        return schedule_kind(self.schedule).rank_of(self.degrees.pp, stage)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Virtual stages of a pipeline rank, in chain order."""
        return schedule_kind(self.schedule).stages_of(self.degrees.pp, self.degrees.vpp, rank)

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of inputs and of weights are separate actions. Other schedules
        without a closed form count too, unless interleaved, because they are also solved by
        their timeline."""
        kind = schedule_kind(self.schedule)
        return kind.splits_backward or not (kind.closed_form or kind.is_interleaved)

    @property
    def needs_timeline(self) -> bool:
        """Whether the step time needs the timeline: interleaved stages, or a split backward."""
        return schedule_kind(self.schedule).is_interleaved or self.splits_backward

    def __str__(self) -> str:
        return plan_title(self)
