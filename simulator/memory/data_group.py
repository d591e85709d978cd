"""`DataGroup`: data-parallel ranks of our executor, and how they share states."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import Device
from simulator.training_run.framework.executor_states import (
    ExecutorStates,
    PrecisionBytes,
    gathers_per_micro_batch,
)
from simulator.values.degrees import Degrees
from simulator.values.plan import Plan
from simulator.values.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """How data-parallel ranks share states.

    pipelined  under a pipeline schedule: gradients are summed once per step, and parameters are
               gathered once per step except under ZeRO 3 (executor_states.gathers_per_micro_batch)
    offloaded  shards of parameters, gradients and optimizer states are in host memory
    """

    degrees: Degrees
    zero_stage: int
    pipelined: bool
    num_microbatches: int
    workload: Workload
    stack: ExecutorStates
    offloaded: bool = False

    @property
    def sizes(self) -> PrecisionBytes:
        """Bytes per parameter."""
        return self.stack.bytes_of(self.workload.precision)

    @property
    def sharded(self) -> bool:
        """Whether parameters are stored in shards: with ZeRO 1 and above."""
        return self.zero_stage >= 1 and self.degrees.dp > 1

    @property
    def shards(self) -> int:
        """Number of replicas over which gradients and optimizer states are sharded."""
        return self.degrees.shard_replicas if self.sharded else 1

    @property
    def gathers(self) -> int:
        """Number of times that a micro-batch gathers the parameters of a block."""
        alone = self.degrees.dp == 1
        return 0 if alone else gathers_per_micro_batch(self.zero_stage, pipelined=self.pipelined)

    @property
    def moves_blocks(self) -> bool:
        """Whether weights or gradients of blocks are allocated while micro-batches run. In fp32,
        the ops of a pipeline add gradients to their sums."""
        mixed = self.sizes.working_copy_bytes > 0
        return self.sharded and (self.zero_stage == 3 or mixed or not self.pipelined)

    @property
    def once_per_step(self) -> bool:
        """Whether gradients are reduced to shards only once per step. Parameters are then gathered
        once per step too, unless every micro-batch gathers them."""
        return self.sharded and (self.pipelined or self.zero_stage == 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataGroup(Sharing):
    """Data-parallel ranks with equal blocks.

    devices  their numbers in the cluster; devices of one hybrid-sharding group are consecutive
    """

    devices: tuple[int, ...]
    cluster: Cluster

    @property
    def device(self) -> Device:
        """The device of the first rank."""
        return self.cluster.device_at(self.devices[0])

    @property
    def shard_devices(self) -> tuple[int, ...]:
        """Devices that shard states together: all, or the first group of hybrid sharding."""
        return self.devices[: self.degrees.shard_replicas]

    @property
    def replicate_devices(self) -> tuple[int, ...]:
        """Devices with the same shard in different groups of hybrid sharding."""
        return self.devices[:: self.degrees.shard_replicas]

    def gradient_sum(self, size_bytes: float) -> list[tuple[str, float, tuple[int, ...], int]]:
        """(operation, bytes, devices, groups that communicate at the same time) of each message
        that sums sharded gradients of this size: first within a group, then shards across
        groups."""
        tp, shards = self.degrees.tp, self.degrees.shard_replicas
        found = [("reduce_scatter", size_bytes, self.shard_devices, tp)]
        if self.degrees.dp_replicate > 1:
            found.append(("all_reduce", size_bytes / shards, self.replicate_devices, tp * shards))
        return found


def data_group(plan: Plan, pp_rank: int, cluster: Cluster, stack: ExecutorStates) -> DataGroup:
    """The replicas of a pipeline rank of a plan."""
    return DataGroup(
        degrees=plan.degrees,
        zero_stage=plan.zero_stage,
        pipelined=plan.pipelined,
        num_microbatches=plan.num_microbatches,
        workload=plan.workload,
        stack=stack,
        offloaded=plan.optimizer_offload,
        devices=plan.degrees.group("dp", pp=pp_rank),
        cluster=cluster,
    )
