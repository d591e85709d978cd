"""Cost of a virtual stage per micro-batch: blocks, their messages, and the pipeline runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiles.hardware.catalogue.device import ActionOverhead
from profiles.hardware.catalogue.host import host_of
from simulator.memory.data_group import DataGroup
from simulator.memory.host_offload import link_s
from simulator.traced.block_cost import BlockCost
from simulator.traced.in_step import exposed_seconds, in_step, message_in_step
from simulator.traced.kernel_errors import joint_share
from simulator.traced.op_cost import moved_cost
from simulator.traced.slowest_rank import slowest_rank
from simulator.training_run.framework.executor_states import Software
from simulator.values.prediction import Interval

# Ends of the 90 % interval of communication inside blocks, as factors (assumed).
_MESSAGE_ENDS = (0.7, 1.3)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """Times of one virtual stage per micro-batch; intervals in seconds.

    gather_s   part of forward and backward: exposed gathering of sharded parameters (ZeRO-3)
    runtime_s  part of forward and backward: pipeline runtime
    weight_s   part of backward: W, if the schedule splits it
    slowest    factor on all times for the slowest of the plan's ranks
    """

    forward: Interval
    backward: Interval
    recompute_s: float
    launch_s: float
    runtime_s: float
    tp_s: float
    gather_s: float
    weight_s: float = 0.0
    slowest: float


def stage_cost(blocks: list[BlockCost], group: DataGroup) -> StageCost:
    """The cost of a stage of these blocks, without separate weight gradients (`weight_s` is 0).

    group  replicas of the stage
    """
    gather = sum(gather_seconds(b, group) for b in blocks)
    copies = [copy_seconds(b, group) for b in blocks]
    tp_forward = sum(b.tp_forward_s for b in blocks)
    tp_backward = sum(b.tp_backward_s for b in blocks)
    more = missing_overhead(blocks, group)
    forward_more = more.forward_cpu_s + more.forward_outside_s + sum(f for f, _ in copies)
    backward_more = more.backward_cpu_s + more.backward_outside_s + sum(b for _, b in copies)
    joint = joint_share((b.by_kind for b in blocks), group.device.measurements)
    return StageCost(
        forward=_total(blocks, "forward", joint, tp_forward + gather / 2 + forward_more),
        backward=_total(blocks, "backward", joint, tp_backward + gather / 2 + backward_more),
        recompute_s=sum(b.recompute_s for b in blocks),
        launch_s=sum(b.launch_s for b in blocks),
        runtime_s=sum(b.runtime_s for b in blocks)
        + more.forward_outside_s
        + more.backward_outside_s,
        tp_s=tp_forward + tp_backward,
        gather_s=gather,
        slowest=slowest_rank(group, group.num_microbatches * sum(b.work_s for b in blocks)),
    )


def gather_seconds(block: BlockCost, group: DataGroup) -> float:
    """Exposed seconds per micro-batch in which a block waits for its sharded parameters and for the
    sums of its sharded gradients.

    ZeRO-3 gathers twice per micro-batch, ZeRO-2 without a pipeline once. A stack that prefetches
    hides part of them under the block's own work (in_step.exposed_seconds). Shards in host memory
    are copied to the device before each gather, and back after each sum (host_offload.py).
    """
    if group.gathers == 0:
        return 0.0
    cluster = group.cluster
    forward, backward, summed = block.moved(group)

    def from_host(elements: int) -> float:
        shard = elements / group.degrees.shard_replicas
        return link_s(host_of(group.device.name), shard) if group.offloaded else 0.0

    def gathered(elements: int) -> float:
        size, tp = elements * group.sizes.compute_bytes, group.degrees.tp
        found = message_in_step("all_gather", size, group.shard_devices, cluster, sharing=tp)
        return found.time_s + from_host(elements)

    messages = [gathered(forward), gathered(backward) if backward else 0.0]
    if summed:
        messages[1] += sum(
            message_in_step(operation, size, devices, cluster, sharing=sharing).time_s
            for operation, size, devices, sharing in group.gradient_sum(
                summed * group.sizes.gradient_bytes
            )
        )
        messages[1] += from_host(summed)
    work = (block.forward.value, block.backward.value)
    return sum(exposed_seconds(m, w, group.device) for m, w in zip(messages, work, strict=True))


def copy_seconds(block: BlockCost, group: DataGroup) -> tuple[float, float]:
    """Seconds per micro-batch, in forward and backward, of mixed precision's passes over a block's
    parameters that are not part of its backward; CPU only, which hides none. The backward already
    has the sum of gradients in the compute type, as many bytes as one cast. Frozen parameters are
    cast if sharded, and have no gradients.

    With FSDP2, weights are cast, gathered and split before the forward; after the backward,
    gradients are cast into one tensor, summed and divided (torch 2.13,
    torch/distributed/fsdp/_fully_shard). With the profile's copy bandwidth, the error for a unit of
    2 to 8 million parameters is below a third (one core, 2026-11-22). Weights that stay cast during
    a step cost 0: their copies once per step were not measured.

    Without sharding, the gradients of all micro-batches but the first are added to sums in the
    gradients' type, which are read too (executor/working_copies.py); times of blocks measured in a
    pipeline include this.
    """
    sizes, device = group.sizes, group.device
    if device.type != "cpu" or not sizes.working_copy_bytes or not block.parameter_count:
        return 0.0, 0.0
    weight, working, gradient = (
        sizes.parameter_bytes,
        sizes.working_copy_bytes,
        sizes.gradient_bytes,
    )
    if group.sharded:
        if group.once_per_step:
            return 0.0, 0.0
        forward = block.parameter_count * ((weight + working) + 2 * working + 2 * working)
        backward = block.trained_count * ((working + gradient) + 2 * gradient + 2 * gradient)
        whole = moved_cost("copy", forward + backward, device).time_s
        return whole * forward / (forward + backward), whole * backward / (forward + backward)
    if block.action is not None or not block.trained_count:
        return 0.0, 0.0
    read = moved_cost("copy", block.trained_count * gradient, device).time_s
    return 0.0, read * (1 - 1 / group.num_microbatches)


def missing_overhead(blocks: Sequence[BlockCost], group: DataGroup) -> ActionOverhead:
    """Overhead of a stage's actions that is not in its blocks' times.

    Blocks are measured with one stage per rank, and include equal shares of its actions' overhead.
    A rank with vpp stages has vpp times the actions for the same blocks, so each action's blocks
    include 1 / vpp of its overhead. Blocks that were not measured include none of the measured
    overhead of actions or, without a pipeline, of steps, which is divided over the micro-batches.
    On an accelerator without such measurements, the overhead is our executor's work per micro-batch
    (`microbatch_ms`).
    """
    measured, pp = group.device.measurements, group.degrees.pp
    found = [b.action for b in blocks if b.action is not None]
    if found:
        rest = (1 - 1 / group.degrees.vpp) / len(found)
        return ActionOverhead(
            forward_cpu_s=rest * sum(a.forward_cpu_s for a in found),
            forward_outside_s=rest * sum(a.forward_outside_s for a in found),
            backward_cpu_s=rest * sum(a.backward_cpu_s for a in found),
            backward_outside_s=rest * sum(a.backward_outside_s for a in found),
        )
    if measured is not None and measured.action is not None and pp > 1:
        return measured.action
    if measured is not None and measured.step is not None and pp == 1:
        once = measured.step.step_s / group.num_microbatches
        return ActionOverhead(
            forward_cpu_s=0.0,
            forward_outside_s=measured.step.forward_s + once,
            backward_cpu_s=0.0,
            backward_outside_s=measured.step.backward_s,
        )
    known, ours = in_step(group.device), group.stack.software is Software.EXECUTOR
    return ActionOverhead(
        forward_cpu_s=1e-3 * known.level * known.microbatch_ms * ours,
        forward_outside_s=0.0,
        backward_cpu_s=0.0,
        backward_outside_s=0.0,
    )


def _total(blocks: list[BlockCost], of: str, joint: tuple[float, float], more_s: float) -> Interval:
    """Sum of the blocks' passes and of communication; joint  result of `joint_share`"""
    parts: list[Interval] = [getattr(block, of) for block in blocks]
    ends = [joint if block.by_kind else (1.0, 1.0) for block in blocks]
    value = sum(part.value for part in parts)
    less = sum(low * (x.value - x.low) for x, (low, _) in zip(parts, ends, strict=True))
    more = sum(high * (x.high - x.value) for x, (_, high) in zip(parts, ends, strict=True))
    return Interval(
        value=value + more_s,
        low=max(0.0, value - less) + _MESSAGE_ENDS[0] * more_s,
        high=value + more + _MESSAGE_ENDS[1] * more_s,
    )
