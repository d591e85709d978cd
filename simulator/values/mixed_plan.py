"""The plan of a job on mixed devices: replicas that differ in devices, stages and micro-batches.

`plan.Plan` has one list of stages and equal shares for all replicas, which is what our
executor runs. Here every replica has its own: a pipeline of tensor-parallel groups, each of one
type of device, and its number of micro-batches. Devices may be left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from profiles.document import flattened
from profiles.errors import InputError
from simulator.values.degrees import Degrees
from simulator.values.plan import Plan, Recompute, Stage
from simulator.values.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedStage:
    """Blocks [first_block, last_block) on a tensor-parallel group.

    device   the type of its devices;  devices  their numbers in the cluster
    """

    device: str
    devices: tuple[int, ...]
    first_block: int
    last_block: int
    recompute: tuple[Recompute, ...]

    @property
    def stage(self) -> Stage:
        """Its blocks alone."""
        return Stage(
            first_block=self.first_block, last_block=self.last_block, recompute=self.recompute
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPipeline:
    """A replica: its stages in chain order, and its micro-batches per step."""

    stages: tuple[MixedStage, ...]
    num_microbatches: int

    def stage_of(self, block: int) -> MixedStage:
        """The stage that holds a block."""
        return next(stage for stage in self.stages if block < stage.last_block)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPlan:
    """A complete decision for mixed devices; 1F1B in every pipeline.

    model, model_hash, block_entries, tied_parameters, tensor_parallel   as in Plan
    degrees      tp of every stage; each replica has its own pp
    zero_stage   0, 1 or 2: states (and gradients) of each block sharded over the ranks that hold it
                 in all replicas. ZeRO-3 gathers per micro-batch, which needs equal shares.
    unused       numbers of the cluster's devices that are left out

    Raises InputError where replicas do not add up to the batch, cover the chain or share devices.
    """

    model: str
    model_hash: str
    block_entries: tuple[str, ...]
    tied_parameters: tuple[tuple[str, ...], ...] = ()
    tensor_parallel: tuple[tuple[str, str], ...] = ()
    cluster: str
    cluster_hash: str
    workload: Workload
    degrees: Degrees = field(metadata=flattened("tp"))
    zero_stage: int
    micro_batch: int
    pipelines: tuple[MixedPipeline, ...]
    unused: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.pipelines:
            raise InputError("a plan for mixed devices needs one replica or more")
        if self.degrees.used - {"tp"}:
            raise InputError(
                f"the degrees of a plan for mixed devices have tp only, got {self.degrees.text}; "
                "stages and replicas are in its pipelines"
            )
        if self.zero_stage not in (0, 1, 2):
            raise InputError(
                f"replicas with unlike shares run with ZeRO 0, 1 or 2, got {self.zero_stage}: "
                "ZeRO-3 gathers parameters in every micro-batch, for which all must have as many"
            )
        sequences = self.micro_batch * sum(p.num_microbatches for p in self.pipelines)
        if sequences != self.workload.global_batch:
            shares = " + ".join(str(p.num_microbatches) for p in self.pipelines)
            raise InputError(
                f"{shares} micro-batches of {self.micro_batch} are {sequences} sequences, the "
                f"global batch is {self.workload.global_batch}"
            )
        seen = list(self.unused)
        for number, pipeline in enumerate(self.pipelines):
            # Also checks that the stages follow each other and cover the chain.
            self.replica(number)
            for stage in pipeline.stages:
                if len(stage.devices) != self.degrees.tp:
                    raise InputError(
                        f"a stage of replica {number} has {len(stage.devices)} devices, tp is "
                        f"{self.degrees.tp}"
                    )
                seen.extend(stage.devices)
        if len(set(seen)) != len(seen):
            twice = sorted({index for index in seen if seen.count(index) > 1})
            raise InputError(f"devices {twice} are in the plan twice")

    @property
    def world_size(self) -> int:
        """Devices in use."""
        return self.degrees.tp * sum(len(pipeline.stages) for pipeline in self.pipelines)

    @property
    def num_replicas(self) -> int:
        return len(self.pipelines)

    def used(self) -> Iterator[tuple[str, int]]:
        """(type, number in the cluster) of every device in use."""
        for pipeline in self.pipelines:
            for stage in pipeline.stages:
                for index in stage.devices:
                    yield stage.device, index

    def cuts(self) -> tuple[int, ...]:
        """First blocks of the parts of the chain that lie in one stage of every replica."""
        return tuple(sorted({s.first_block for p in self.pipelines for s in p.stages}))

    def replica(self, number: int) -> Plan:
        """The ordinary plan of a replica on its own, with its share of the batch."""
        pipeline = self.pipelines[number]
        count = len(pipeline.stages)
        return Plan(
            model=self.model,
            model_hash=self.model_hash,
            block_entries=self.block_entries,
            tied_parameters=self.tied_parameters,
            tensor_parallel=self.tensor_parallel,
            cluster=self.cluster,
            cluster_hash=self.cluster_hash,
            workload=Workload(
                global_batch=self.micro_batch * pipeline.num_microbatches,
                sequence_length=self.workload.sequence_length,
                precision=self.workload.precision,
                optimizer=self.workload.optimizer,
                counted_in=self.workload.counted_in,
            ),
            degrees=replace(self.degrees, pp=count),
            micro_batch=self.micro_batch,
            schedule="1f1b" if count > 1 else "none",
            stages=tuple(stage.stage for stage in pipeline.stages),
        )
