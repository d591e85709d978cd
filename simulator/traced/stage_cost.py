"""What a virtual stage takes per micro-batch: blocks, their messages, the runtime around."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import ActionOverhead, Device
from simulator.traced.block_cost import BlockCost
from simulator.traced.in_step import exposed_seconds, in_step, message_in_step
from simulator.traced.kernel_errors import joint_share
from simulator.traced.op_cost import moved_cost
from simulator.traced.slowest_rank import slowest_rank
from simulator.training_run.framework.executor_states import (
    ExecutorStates,
    PrecisionBytes,
    Software,
)
from simulator.values.plan import Plan
from simulator.values.prediction import Interval

# Ends of the 90 % interval of communication inside blocks, as factors (assumed).
MESSAGE_ENDS = {"value": 1.0, "low": 0.7, "high": 1.3}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """Times of one virtual stage per micro-batch; intervals in seconds.

    gather_s  exposed gathering of sharded parameters (ZeRO-3), part of forward and backward
    runtime_s  of the pipeline runtime, part of forward and backward
    weight_s  part of backward that is W, where the schedule splits it
    slowest   by which all of it takes longer on the slowest of the plan's ranks
    """

    forward: Interval
    backward: Interval
    recompute_s: float
    launch_s: float
    runtime_s: float
    tp_s: float
    gather_s: float
    weight_s: float = 0.0
    slowest: float = 1.0


def stage_cost(
    plan: Plan, stage: int, blocks: list[BlockCost], cluster: Cluster, stack: ExecutorStates
) -> StageCost:
    """The cost of a plan's stage, without its weights' gradients apart (`weight_s` is 0)."""
    degrees = plan.degrees
    group = degrees.group("dp", pp=plan.pp_rank_of(stage))
    gather = sum(
        gather_seconds(
            b,
            zero_stage=plan.zero_stage,
            group=group,
            precision=plan.workload.precision,
            cluster=cluster,
            stack=stack,
            pipelined=plan.pipelined,
            sharing=degrees.tp,
        )
        for b in blocks
    )
    device = cluster.device_at(group[0])
    sizes = stack.bytes_of(plan.workload.precision)
    sharded = plan.zero_stage >= 1 and degrees.dp > 1
    copies = [
        copy_seconds(
            b,
            sizes,
            device,
            sharded=sharded,
            once_per_step=plan.pipelined or plan.zero_stage == 1,
            num_microbatches=plan.num_microbatches,
        )
        for b in blocks
    ]
    tp_forward = sum(b.tp_forward_s for b in blocks)
    tp_backward = sum(b.tp_backward_s for b in blocks)
    more = missing_overhead(
        blocks,
        pp=degrees.pp,
        vpp=degrees.vpp,
        num_microbatches=plan.num_microbatches,
        device=device,
        software=stack.software,
    )
    forward_more = more.forward_cpu_s + more.forward_outside_s + sum(f for f, _ in copies)
    backward_more = more.backward_cpu_s + more.backward_outside_s + sum(b for _, b in copies)
    joint = joint_share([e for b in blocks for e in b.errors], device.measurements)
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
        slowest=slowest_rank(
            cluster,
            group[0],
            degrees.num_devices,
            pipelined=plan.pipelined,
            work_s=plan.num_microbatches * sum(b.work_s for b in blocks),
        ),
    )


def gather_seconds(
    block: BlockCost,
    *,
    zero_stage: int,
    group: tuple[int, ...],
    precision: str,
    cluster: Cluster,
    stack: ExecutorStates,
    pipelined: bool = True,
    sharing: int = 1,
) -> float:
    """Exposed seconds per micro-batch in which a block waits for its sharded parameters and for
    the sums of its sharded gradients, which frozen ones have none of.

    pipelined  True under a pipeline schedule: torch's runtime leaves parameters whole after a
               backward (PipelineStage.backward_maybe_with_nosync), so that ZeRO-3 gathers once
               per micro-batch, after its forward freed them, and ZeRO-2 never; gradients are summed
               once per step, of ZeRO-1 everywhere; ZeRO-3 gathers once more for the first
               forward (both: step_tail.py). Without a pipeline FSDP2
               frees parameters after each backward (ZeRO-3 gathers twice, ZeRO-2 once) and sums
               gradients in each.
    sharing    dp groups of the same nodes that communicate at the same time

    A stack that prefetches hides a part of what fits under the block's own work
    (in_step.exposed_seconds).
    """
    count = {2: 0 if pipelined else 1, 3: 1 if pipelined else 2}.get(zero_stage, 0)
    if count == 0 or len(group) < 2:
        return 0.0
    sizes = stack.bytes_of(precision)
    device = cluster.device_at(group[0])

    def price(operation: str, size_bytes: float) -> float:
        return message_in_step(operation, size_bytes, group, cluster, sharing=sharing).time_s

    # Without a pipeline a weight that several blocks share is gathered, and summed, once.
    held = functools.partial(block.elements, tied=pipelined, shares=len(group))
    gather = price("all_gather", held() * sizes.compute_bytes)
    messages = [gather, gather if count == 2 else 0.0]
    if not pipelined and block.trained_count:
        messages[1] += price("reduce_scatter", held(trained=True) * sizes.gradient_bytes)
    work = (block.forward.value, block.backward.value)
    return sum(exposed_seconds(m, w, device) for m, w in zip(messages, work, strict=True))


def copy_seconds(
    block: BlockCost,
    sizes: PrecisionBytes,
    device: Device,
    *,
    sharded: bool,
    once_per_step: bool,
    num_microbatches: int,
) -> tuple[float, float]:
    """Seconds per micro-batch of mixed precision's passes over a block's parameters that its
    backward does not already contain, in its forward and in its backward; CPU only, which hides
    none. Its backward has the sum of gradients in the computing type, as many bytes as one cast.
    Frozen parameters are cast where they are sharded, and have no gradients.

    sharded  by FSDP2: before the forward the weights are cast, gathered and taken apart, after the
             backward the gradients are cast into one tensor, summed and divided (torch 2.13,
             torch/distributed/fsdp/_fully_shard). With the copies' bandwidth of the profile this is
             what a unit of 2 to 8 million parameters takes there within a third (one core,
             2026-11-22)
    once_per_step  weights stay cast through a step, as under a pipeline and of ZeRO 1: 0 where they
             are sharded, since what is left once a step was not measured.
             Where no parameter is sharded, the gradients of all micro-batches but the first are
             added to sums in the gradients' type, which are read too (executor/working_copies.py);
             blocks that were measured in a pipeline have that in their times.
    """
    if device.type != "cpu" or not sizes.working_copy_bytes or not block.parameter_count:
        return 0.0, 0.0
    weight, working, gradient = (
        sizes.parameter_bytes,
        sizes.working_copy_bytes,
        sizes.gradient_bytes,
    )

    if sharded:
        if once_per_step:
            return 0.0, 0.0
        forward = block.parameter_count * ((weight + working) + 2 * working + 2 * working)
        backward = block.trained_count * ((working + gradient) + 2 * gradient + 2 * gradient)
        whole = moved_cost("copy", forward + backward, device).time_s
        return whole * forward / (forward + backward), whole * backward / (forward + backward)
    if block.action is not None or not block.trained_count:
        return 0.0, 0.0
    read = moved_cost("copy", block.trained_count * gradient, device).time_s
    return 0.0, read * (1 - 1 / num_microbatches)


def missing_overhead(
    blocks: Sequence[BlockCost],
    *,
    pp: int,
    vpp: int,
    num_microbatches: int,
    device: Device,
    software: Software = Software.EXECUTOR,
) -> ActionOverhead:
    """Overhead of a stage's actions that its blocks do not carry.

    Blocks are measured with one stage per rank, and carry equal shares of its actions' overhead. A
    rank of vpp stages has vpp times the actions with the same blocks: a vpp-th is in each's. Blocks
    that were not measured carry nothing of what was measured of the device's actions or, without a
    pipeline, of its steps; every micro-batch has its share of what is once per step. On an
    accelerator without such measurements it is our executor's work per micro-batch
    (`microbatch_ms`).
    """
    measured = device.measurements
    found = [b.action for b in blocks if b.action is not None]
    if not found and measured is not None:
        if pp > 1 and measured.action is not None:
            return measured.action
        if pp == 1 and measured.step is not None:
            return ActionOverhead(
                forward_cpu_s=0.0,
                forward_outside_s=measured.step.forward_s + measured.step.step_s / num_microbatches,
                backward_cpu_s=0.0,
                backward_outside_s=measured.step.backward_s,
            )
    if not found:
        known = in_step(device)
        host_s = 1e-3 * known.level * known.microbatch_ms * (software is Software.EXECUTOR)
        return ActionOverhead(
            forward_cpu_s=host_s,
            forward_outside_s=0.0,
            backward_cpu_s=0.0,
            backward_outside_s=0.0,
        )
    rest = (1 - 1 / vpp) / len(found)
    return ActionOverhead(
        forward_cpu_s=rest * sum(a.forward_cpu_s for a in found),
        forward_outside_s=rest * sum(a.forward_outside_s for a in found),
        backward_cpu_s=rest * sum(a.backward_cpu_s for a in found),
        backward_outside_s=rest * sum(a.backward_outside_s for a in found),
    )


def _total(blocks: list[BlockCost], of: str, joint: tuple[float, float], more_s: float) -> Interval:
    """Sum of the blocks' passes and of communication. joint  as `joint_share` gives it"""
    value = less = more = 0.0
    for block in blocks:
        part: Interval = getattr(block, of)
        low, high = joint if block.errors else (1.0, 1.0)
        value += part.value
        less += low * (part.value - part.low)
        more += high * (part.high - part.value)
    return Interval(
        value=value + more_s,
        low=max(0.0, value - less) + MESSAGE_ENDS["low"] * more_s,
        high=value + more + MESSAGE_ENDS["high"] * more_s,
    )
