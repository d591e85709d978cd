"""The plan: which device runs which blocks, how, and in which order of micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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
    """Blocks [first_block, last_block) of the chain, with each block's recompute kind.

    device, devices   type of its devices and their numbers in the cluster; None where they follow
                      from the plan's degrees
    """

    first_block: int
    last_block: int
    recompute: tuple[Recompute, ...]
    device: str | None = None
    devices: tuple[int, ...] | None = None

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
class Pipeline:
    """A replica that differs from others: its stages, each a tensor-parallel group of one type of
    device, and its micro-batches per step. It runs 1F1B."""

    stages: tuple[Stage, ...]
    num_microbatches: int

    def stage_of(self, block: int) -> Stage:
        """The stage that holds a block."""
        return next(stage for stage in self.stages if block < stage.last_block)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A complete decision, runnable where all replicas are alike.

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
    pipelines      the replicas where they differ in devices, stages or micro-batches: `stages` is
                   then empty, pp the most stages of a replica. ZeRO 0 to 2: states and gradients
                   of each block are sharded over the ranks that hold it in all replicas
    unused         numbers of devices that such replicas do not use
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
    pipelines: tuple[Pipeline, ...] | None = None
    unused: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        degrees = self.degrees
        if self.pipelines is not None:
            self._check_pipelines(self.pipelines)
            return
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

    def _check_pipelines(self, pipelines: tuple[Pipeline, ...]) -> None:
        if not pipelines:
            raise InputError("a plan whose replicas differ needs one replica or more")
        if self.zero_stage not in (0, 1, 2):
            raise InputError(
                f"replicas with unlike shares run with ZeRO 0, 1 or 2, got {self.zero_stage}: "
                "ZeRO-3 gathers parameters in every micro-batch, for which all must have as many"
            )
        most = max(len(pipeline.stages) for pipeline in pipelines)
        expected = Degrees(tp=self.degrees.tp, pp=most, dp=len(pipelines))
        if self.degrees != expected or self.stages:
            raise InputError(
                f"a plan of {len(pipelines)} replicas that differ, of up to {most} stages, has the "
                f"degrees {expected.text} and no other stages, got {self.degrees.text}"
            )
        sequences = self.micro_batch * sum(p.num_microbatches for p in pipelines)
        if sequences != self.workload.global_batch:
            shares = " + ".join(str(p.num_microbatches) for p in pipelines)
            raise InputError(
                f"{shares} micro-batches of {self.micro_batch} are {sequences} sequences, the "
                f"global batch is {self.workload.global_batch}"
            )
        for number, pipeline in enumerate(pipelines):
            for stage in pipeline.stages:
                if len(stage.devices or ()) != self.degrees.tp:
                    raise InputError(
                        f"a stage of replica {number} has {len(stage.devices or ())} devices, tp "
                        f"is {self.degrees.tp}"
                    )
            # The plan of this replica alone checks that its stages cover the chain.
            self._alike(pipeline.stages, [pipeline], num_microbatches=pipeline.num_microbatches)
        seen = (*self.devices, *(self.unused or ()))
        if len(set(seen)) != len(seen):
            twice = sorted({index for index in seen if seen.count(index) > 1})
            raise InputError(f"devices {twice} are in the plan twice")

    @property
    def devices(self) -> tuple[int, ...]:
        """Numbers in the cluster of the devices in use."""
        if self.pipelines is None:
            return self.degrees.devices or tuple(range(self.degrees.num_devices))
        return tuple(
            index for p in self.pipelines for stage in p.stages for index in stage.devices or ()
        )

    @property
    def pipelined(self) -> bool:
        """Whether gradients are exchanged once per step, behind the last backward, and parameters
        stay whole between micro-batches."""
        return self.schedule != "none"

    @property
    def replicas(self) -> tuple[Plan, ...]:
        """The plan itself where replicas are alike. Else for each replica the plan of so many
        replicas like it, whose gradients go to the devices that hold the same blocks in others."""
        if self.pipelines is None:
            return (self,)
        return tuple(
            self._alike(
                each.stages,
                (each, *(other for other in self.pipelines if other is not each)),
                num_microbatches=each.num_microbatches,
            )
            for each in self.pipelines
        )

    @property
    def parts(self) -> Plan:
        """Of replicas that differ: the plan of stages that lie in one stage of every replica, whose
        gradients are exchanged together."""
        assert self.pipelines is not None
        cuts = sorted({stage.first_block for p in self.pipelines for stage in p.stages})
        ends = (*cuts[1:], len(self.block_entries))
        stages = [
            Stage(first_block=a, last_block=b, recompute=(Recompute.NONE,) * (b - a))
            for a, b in zip(cuts, ends, strict=True)
        ]
        return self._alike(stages, self.pipelines)

    def _alike(
        self, stages: Sequence[Stage], holders: Sequence[Pipeline], *, num_microbatches: int = 1
    ) -> Plan:
        """A plan of replicas alike, the stages of each on the devices that hold their first block
        in these pipelines."""
        dp = len(holders)
        held = [holder.stage_of(stage.first_block) for stage in stages for holder in holders]
        return replace(
            self,
            workload=replace(self.workload, global_batch=dp * self.micro_batch * num_microbatches),
            degrees=Degrees(
                tp=self.degrees.tp,
                pp=len(stages),
                dp=dp,
                devices=tuple(index for stage in held for index in stage.devices or ()),
            ),
            stages=tuple(stages),
            zero_stage=self.zero_stage if dp > 1 else 0,
            pipelines=None,
            unused=None,
        )

    @property
    def num_microbatches(self) -> int:
        """Micro-batches per optimizer step and replica, where replicas are alike."""
        return self.workload.global_batch // (self.degrees.dp * self.micro_batch)

    def stages_of(self, pp_rank: int) -> tuple[int, ...]:
        """Virtual stages that a pipeline rank runs, in chain order."""
        return schedule_kind(self.schedule).stages_of(self.degrees.pp, self.degrees.vpp, pp_rank)

    def pp_rank_of(self, stage: int) -> int:
        """Pipeline rank that runs a virtual stage."""
        return schedule_kind(self.schedule).rank_of(self.degrees.pp, stage)
