"""The plan: which device runs which blocks, how, and in which order of micro-batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from profiles.document import flattened
from profiles.errors import InputError
from simulator.schedules.schedule import schedule_kind
from simulator.values.degrees import AXIS_ORDERS, Degrees
from simulator.values.workload import Workload

PLAN_SCHEMA = "shardwright/plan@2"


class Recompute(StrEnum):
    """What a block computes again in backward instead of keeping it."""

    NONE = "none"
    ATTENTION = "attention"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Blocks [first_block, last_block) of the chain, with each block's recompute kind."""

    first_block: int
    last_block: int
    recompute: tuple[Recompute, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.first_block < self.last_block:
            raise InputError(
                f"a stage needs at least one block, got [{self.first_block}, {self.last_block})"
            )
        if len(self.recompute) != self.last_block - self.first_block:
            raise InputError(
                f"stage [{self.first_block}, {self.last_block}) has {len(self.recompute)} "
                f"recompute kinds for {self.last_block - self.first_block} blocks"
            )

    @property
    def num_blocks(self) -> int:
        return self.last_block - self.first_block


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A complete, runnable decision.

    model          what the user named; model_hash  content of its traced graph
    block_entries  for each block of the chain the module whose call opens it ("" = the start)
    tied_parameters  groups of parameter names that share one storage
    tensor_parallel  (path pattern, kind) of building/tensor_parallel_rules.py, for tp > 1
    cluster        name of the cluster; cluster_hash  its content
    degrees        tp, pp, dp and vpp; our executor has neither context nor expert parallelism
    stages         one per virtual stage, in chain order; virtual stage s runs on pipeline rank
                   s % pp, or where the schedule lies in a V on the rank there and back again
                   (ScheduleKind.placement)
    zero_stage     0 none, 1 optimizer states, 2 and gradients, 3 and parameters sharded over dp
    seed           the only source of randomness; solver_workers  fixed, for equal answers
    """

    model: str
    model_hash: str
    block_entries: tuple[str, ...]
    tied_parameters: tuple[tuple[str, ...], ...] = ()
    tensor_parallel: tuple[tuple[str, str], ...] = ()
    cluster: str
    cluster_hash: str
    workload: Workload
    degrees: Degrees = field(metadata=flattened("tp", "pp", "dp", optional=("vpp",)))
    zero_stage: int = 0
    micro_batch: int
    schedule: str
    stages: tuple[Stage, ...]
    seed: int = 0
    solver_workers: int = 1

    def __post_init__(self) -> None:
        degrees = self.degrees
        if degrees.cp > 1 or degrees.ep > 1 or degrees.axis_order != AXIS_ORDERS[0]:
            raise InputError(
                f"a plan for our executor has tp, pp, dp and vpp only, got {degrees.text}; plan "
                "for a framework that has the others (--stack)"
            )
        if self.micro_batch < 1:
            raise InputError(f"micro_batch must be 1 or more, got {self.micro_batch}")
        if self.zero_stage not in (0, 1, 2, 3):
            raise InputError(f"zero_stage must be 0, 1, 2 or 3, got {self.zero_stage}")
        if len(self.stages) != degrees.num_stages:
            raise InputError(
                f"pp={degrees.pp} x vpp={degrees.vpp} needs {degrees.num_stages} stages, the plan "
                f"has {len(self.stages)}"
            )
        kind = schedule_kind(self.schedule)
        if kind.splits_backward and not kind.takes_stages(degrees.vpp):
            raise InputError(
                f"the schedule {self.schedule!r} has {kind.stages_per_rank} stages per rank, the "
                f"plan has vpp={degrees.vpp}"
            )
        expected = 0
        for stage in self.stages:
            if stage.first_block != expected:
                raise InputError(
                    f"stages must follow each other: one begins at block {stage.first_block}, "
                    f"the one before ends at {expected}"
                )
            expected = stage.last_block
        if expected != len(self.block_entries):
            raise InputError(
                f"the stages cover {expected} of {len(self.block_entries)} blocks of the model"
            )
        per_replica = degrees.dp * self.micro_batch
        if self.workload.global_batch % per_replica:
            raise InputError(
                f"global batch {self.workload.global_batch} is not a multiple of dp {degrees.dp} x "
                f"micro-batch {self.micro_batch} = {per_replica}"
            )

    @property
    def num_microbatches(self) -> int:
        """Micro-batches per optimizer step and replica."""
        return self.workload.global_batch // (self.degrees.dp * self.micro_batch)

    def stages_of(self, pp_rank: int) -> tuple[int, ...]:
        """Virtual stages that a pipeline rank runs, in chain order."""
        return schedule_kind(self.schedule).stages_of(self.degrees.pp, self.degrees.vpp, pp_rank)

    def pp_rank_of(self, stage: int) -> int:
        """Pipeline rank that runs a virtual stage."""
        return schedule_kind(self.schedule).rank_of(self.degrees.pp, stage)
