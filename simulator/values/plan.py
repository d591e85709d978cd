"""The plan: assignment of blocks to devices, with degrees, schedule and workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from profiles.document import flattened
from profiles.errors import InputError
from profiles.model.building.tensor_parallel_rules import has_shared_tokens
from simulator.schedules.schedule import Schedule, build_schedule, schedule_kind
from simulator.values.degrees import AXIS_ORDERS, Degrees
from simulator.values.workload import Workload

PLAN_SCHEMA = "shardwright/plan@2"


class Recompute(StrEnum):
    """Part of a block recomputed in backward instead of kept in memory."""

    NONE = "none"
    ATTENTION = "attention"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Blocks [first_block, last_block) of the chain, with each block's recompute kind.

    device, devices   type of its devices and their numbers in the cluster; None: given by the
                      plan's degrees
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
    """One replica of a plan with unequal replicas; it runs 1F1B. Each stage is a tensor-parallel
    group of devices of one type. num_microbatches is per step."""

    stages: tuple[Stage, ...]
    num_microbatches: int

    def stage_of(self, block: int) -> Stage:
        """The stage that contains a block."""
        return next(stage for stage in self.stages if block < stage.last_block)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A complete plan; the executor can run it if all replicas are equal.

    model          name given by the user; model_hash  hash of its traced graph
    block_entries  for each block of the chain, the module whose call starts it ("" = the start)
    tied_parameters  groups of names of parameters that share one storage
    tensor_parallel  (path pattern, kind) of building/tensor_parallel_rules.py, for tp > 1
    sequence_parallel  between the layers that tp splits, each of its ranks has a share of the
                   tokens; needs tp > 1 and the rules for it
    cluster        name of the cluster; cluster_hash  hash of its content
    degrees        tp, pp, dp, vpp and dp_replicate; our executor has neither context nor expert
                   parallelism
    stages         one per virtual stage, in chain order; virtual stage s runs on pipeline rank
                   s % pp, or with a V schedule up and down the ranks (ScheduleKind.placement)
    zero_stage     sharded over dp, or over the groups of dp_replicate: 0 nothing, 1 optimizer
                   states, 2 also gradients, 3 also parameters
    optimizer_offload  sharded parameters, gradients and optimizer states are in host memory, where
                   the optimizer steps (FSDP2's CPUOffloadPolicy); needs zero_stage 1, 2 or 3
    seed           the only source of randomness; solver_workers  fixed, for reproducible answers
    pipelines      replicas with unequal devices, stages or micro-batches; `stages` is then empty
                   and pp is the largest number of stages. With ZeRO 1 or 2, states and gradients
                   of a block are sharded over its ranks in all replicas
    unused         numbers of devices not used by unequal replicas
    """

    model: str
    model_hash: str
    block_entries: tuple[str, ...]
    tied_parameters: tuple[tuple[str, ...], ...] = ()
    tensor_parallel: tuple[tuple[str, str], ...] = ()
    cluster: str
    cluster_hash: str
    workload: Workload
    degrees: Degrees = field(metadata=flattened("tp", "pp", "dp", optional=("vpp", "dp_replicate")))
    zero_stage: int = 0
    optimizer_offload: bool = False
    sequence_parallel: bool = False
    micro_batch: int
    schedule: str
    stages: tuple[Stage, ...]
    seed: int = 0
    solver_workers: int = 1
    pipelines: tuple[Pipeline, ...] | None = None
    unused: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        degrees = self.degrees
        if self.optimizer_offload and (why := self._why_no_shards()):
            raise InputError(
                "optimizer_offload=true keeps sharded states in host memory (fully_shard), and "
                f"{why}, or optimizer_offload=false"
            )
        if why := self._why_no_shared_tokens():
            flag = "true" if self.sequence_parallel else "false"
            raise InputError(f"sequence_parallel={flag}, but {why}")
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
        if degrees.dp_replicate > 1 and not self.zero_stage:
            raise InputError(
                f"dp_replicate={degrees.dp_replicate} divides replicas into groups that shard "
                "states, and zero_stage=0 shards none; use zero_stage 1, 2 or 3"
            )
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

    def _why_no_shards(self) -> str:
        if self.pipelines is not None:
            return "unequal replicas do not run with fully_shard; use equal ones"
        return "" if self.zero_stage else "zero_stage=0 shards none; use zero_stage 1, 2 or 3"

    def _why_no_shared_tokens(self) -> str:
        rules = has_shared_tokens(self.tensor_parallel)
        if self.sequence_parallel == rules and (self.degrees.tp > 1 or not rules):
            return ""
        if not self.sequence_parallel:
            return (
                "tensor_parallel has rules for shares of the tokens; use sequence_parallel=true, "
                "or plan again without --sequence-parallel"
            )
        if self.degrees.tp == 1:
            return "tp=1 has no other rank to share tokens with; use tp 2 or more, or false"
        return (
            "tensor_parallel has no rule for shares of the tokens; plan again with "
            "--sequence-parallel, or use false"
        )

    def _check_pipelines(self, pipelines: tuple[Pipeline, ...]) -> None:
        if not pipelines:
            raise InputError("a plan with unequal replicas needs at least one replica")
        if self.zero_stage not in (0, 1, 2):
            raise InputError(
                f"unequal replicas run with ZeRO 0, 1 or 2, got {self.zero_stage}: ZeRO-3 gathers "
                "parameters in every micro-batch, so all replicas need equally many micro-batches"
            )
        most = max(len(pipeline.stages) for pipeline in pipelines)
        expected = Degrees(tp=self.degrees.tp, pp=most, dp=len(pipelines))
        if self.degrees != expected or self.stages:
            raise InputError(
                f"a plan of {len(pipelines)} unequal replicas with up to {most} stages must have "
                f"the degrees {expected.text} and no `stages`, got {self.degrees.text}"
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
        """Numbers of the used devices in the cluster."""
        if self.pipelines is None:
            return self.degrees.devices or tuple(range(self.degrees.num_devices))
        return tuple(
            index for p in self.pipelines for stage in p.stages for index in stage.devices or ()
        )

    @property
    def pipelined(self) -> bool:
        """Whether gradients are exchanged once per step, after the last backward, and parameters
        stay gathered between micro-batches."""
        return self.schedule != "none"

    @property
    def shares(self) -> int:
        """Number of replicas over which a weight's states are sharded."""
        return self.degrees.shard_replicas if self.zero_stage else 1

    @property
    def replicas(self) -> tuple[Plan, ...]:
        """The plan itself if all replicas are equal; otherwise one plan per replica.

        Each of these has equal replicas with this replica's stages. Its gradient groups contain
        the devices with the same blocks in the other replicas."""
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
        """For unequal replicas: a plan whose stages are the common refinement of all replicas'
        stages. The gradients of each are exchanged together."""
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
        """A plan with equal replicas, one per holder; each stage runs on the holder's devices of
        the stage's first block."""
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
        """Micro-batches per optimizer step and replica, for equal replicas."""
        return self.workload.global_batch // (self.degrees.dp * self.micro_batch)

    @property
    def actions(self) -> Schedule:
        """The actions of every pipeline rank by the plan's schedule."""
        return build_schedule(
            self.schedule,
            num_ranks=self.degrees.pp,
            num_microbatches=self.num_microbatches,
            stages_per_rank=self.degrees.vpp,
        )

    def stages_of(self, pp_rank: int) -> tuple[int, ...]:
        """Virtual stages of a pipeline rank, in chain order."""
        return schedule_kind(self.schedule).stages_of(self.degrees.pp, self.degrees.vpp, pp_rank)

    def pp_rank_of(self, stage: int) -> int:
        """Pipeline rank of a virtual stage."""
        return schedule_kind(self.schedule).rank_of(self.degrees.pp, stage)
