"""Memory of the ranks of a plan, from its blocks and its timeline: lasting memory, and memory that
changes with the actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.graph import ModelGraph
from profiles.model.tracing.block_order import crossing_bytes
from simulator.memory.data_group import data_group
from simulator.memory.held import (
    BlockBytes,
    elements_of,
    exchange_bytes,
    executor_static_bytes,
    held_by_stages,
    host_bytes,
)
from simulator.memory.sharded_units import unit_buffers
from simulator.memory.static import StaticBytes
from simulator.schedules.schedule import ActionKind, schedule_kind
from simulator.schedules.timeline import Timeline
from simulator.training_run.framework.executor_states import ExecutorStates
from simulator.values.plan import Plan
from simulator.values.prediction import MemorySample, RankMemory

MESSAGE_COUNTS = (2, 1)
"""Messages that a pipeline stage has room for whatever is in flight, of the size of what it
receives forward and of what it sends forward: an activation received ahead of its forward, a
gradient still being sent and a gradient received (executor/torch_pipeline.py, Messages). torch's
runtime by itself has a buffer per micro-batch and direction during the whole step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """Memory of a micro-batch on the rank of a virtual stage.

    kept_bytes            from the forward to the backward of a micro-batch
    forward_peak_bytes, backward_peak_bytes  highest bytes while the micro-batch runs, in addition
                                             to the other micro-batches
    received_bytes, sent_bytes  of activations over its cuts, per micro-batch; the gradients in the
                                other direction are as large
    first_transient_bytes  during the backward of its first block, which runs last
    weight_bytes          from the I to the W of a micro-batch, if the backward is split
    """

    kept_bytes: float
    forward_peak_bytes: float
    backward_peak_bytes: float
    received_bytes: float
    sent_bytes: float
    first_transient_bytes: float = 0.0
    weight_bytes: float = 0.0


def stage_bytes(
    blocks: Sequence[BlockBytes],
    *,
    received: float,
    sent: float,
    branched: bool = False,
    splits_backward: bool = False,
) -> StageBytes:
    """The memory of a stage from its blocks, in the order in which they run.

    received, sent    bytes over the cuts before and after the stage
    branched          for a graph with branches: a tensor between blocks exists to the end of the
                      micro-batch's backward, once for all blocks that use it and all stages that
                      pass it on. In a chain, a block's output is freed when the next block's
                      backward ends
    splits_backward   an I saves the inputs of W block by block, from the last to the first; those
                      of the later blocks exist during a block's backward. (Those of the block
                      itself count from its end on. A whole B of such a schedule counts as an I.)
    """
    outputs = [block.output_bytes for block in blocks]
    if not branched:
        outputs = [*(block.input_bytes for block in blocks[1:]), sent]
    held = first = received
    forward_peak = backward_peak = 0.0
    weights = [block.weight_bytes * splits_backward for block in blocks]
    aside = sum(weights)
    for block, weight, output in zip(blocks, weights, outputs, strict=True):
        before = held + block.saved_bytes
        forward_peak = max(forward_peak, before + block.forward_transient_bytes)
        held = before + output
        aside -= weight
        alive = held if branched else before + sent
        backward_peak = max(backward_peak, alive + block.backward_transient_bytes + aside)
    opening = blocks[0]
    first += opening.saved_bytes + opening.backward_transient_bytes + sum(weights[1:])
    return StageBytes(
        kept_bytes=held,
        forward_peak_bytes=max(forward_peak, held),
        backward_peak_bytes=backward_peak,
        received_bytes=received,
        sent_bytes=sent,
        first_transient_bytes=first + outputs[0] * branched,
        weight_bytes=sum(weights),
    )


def stage_memory(
    graph: ModelGraph, plan: Plan, stage: int, blocks: Sequence[BlockBytes]
) -> StageBytes:
    """Bytes that a virtual stage of a plan keeps per micro-batch."""
    cut = plan.stages[stage]
    return stage_bytes(
        blocks,
        received=crossing_bytes(graph, cut.first_block),
        sent=crossing_bytes(graph, cut.last_block),
        branched=bool(graph.branches),
        splits_backward=schedule_kind(plan.schedule).splits_backward,
    )


@dataclass(frozen=True, slots=True)
class _Moment:
    """Bytes of a rank at a time, with the parts that are gradients and kept activations."""

    total: float
    time_s: float
    gradients: float = 0.0
    kept: float = 0.0


def rank_memory(
    plan: Plan,
    rank: int,
    *,
    stages: dict[int, StageBytes],
    static: StaticBytes,
    timeline: Timeline,
    capacity_bytes: float,
    given_bytes: float = 0.0,
    exchange_bytes: float = 0.0,
    host_bytes: float = 0.0,
) -> RankMemory:
    """Peak and timeline of a pipeline rank's memory over the step.

    given_bytes     of the inputs and targets of all micro-batches; they count as activations
    exchange_bytes  allocated and freed during the exchange of gradients
    host_bytes      in host memory

    Gradients are freed after the optimizer step, so a stage's gradients exist from its first
    backward. Received tensors of micro-batches in flight count as activations, tensors being sent
    as communication. With a split backward, a micro-batch keeps `weight_bytes` from its I to its W,
    which needs no more.
    """
    communication = 0.0
    if plan.degrees.pp > 1:
        arriving, leaving = MESSAGE_COUNTS
        communication = sum(
            arriving * s.received_bytes + leaving * s.sent_bytes for s in stages.values()
        )
    level = static.parameters + static.optimizer + given_bytes + communication
    share = static.gradients / max(1, len(stages))
    samples = [MemorySample(time_s=0.0, memory_bytes=level)]
    moments = [_Moment(level, 0.0)]
    begun: set[int] = set()
    kept = 0.0
    for i, action in enumerate(timeline.actions):
        if timeline.ranks[i] != rank:
            continue
        stage = stages[action.stage]
        gradients = share * len(begun)
        if action.kind is ActionKind.FORWARD:
            high = kept + stage.forward_peak_bytes
            after = kept + stage.kept_bytes
        elif action.kind is ActionKind.BACKWARD_WEIGHT:
            high, after = kept, kept - stage.weight_bytes
        else:
            others = kept - stage.kept_bytes
            high = max(kept, others + stage.backward_peak_bytes)
            released = action.kind is ActionKind.BACKWARD
            after = others if released else others + stage.weight_bytes
            if action.stage not in begun:
                # Gradients come into being block by block while activations go.
                begun.add(action.stage)
                first = others + share + stage.first_transient_bytes
                if first > high:
                    high, gradients = first - share, share * len(begun)
        start_s, end_s = timeline.start_s[i], timeline.end_s[i]
        now = level + gradients + high
        moments.append(_Moment(now, start_s, gradients, min(kept, high)))
        samples.append(MemorySample(time_s=start_s, memory_bytes=now))
        kept = after
        left = level + share * len(begun) + kept
        samples.append(MemorySample(time_s=end_s, memory_bytes=left))
    step_end_s = max(timeline.end_s)
    end_bytes = level + static.gradients
    if exchange_bytes:
        samples += [
            MemorySample(time_s=step_end_s, memory_bytes=end_bytes + more)
            for more in (exchange_bytes, 0.0)
        ]
    moments.append(_Moment(end_bytes + exchange_bytes, step_end_s, static.gradients))
    peak = max(moments, key=lambda moment: moment.total)
    return RankMemory(
        rank=plan.degrees.rank(pp=rank),
        parameters_bytes=static.parameters,
        gradients_bytes=peak.gradients,
        optimizer_bytes=static.optimizer,
        activations_bytes=given_bytes + peak.kept,
        transient_bytes=max(0.0, peak.total - level - peak.gradients - peak.kept),
        communication_bytes=communication,
        capacity_bytes=capacity_bytes,
        peak_time_s=peak.time_s,
        timeline=tuple(samples),
        host_bytes=host_bytes,
    )


def plan_memory(
    plan: Plan,
    graph: ModelGraph,
    blocks: Sequence[Sequence[BlockBytes]],
    timeline: Timeline,
    cluster: Cluster,
    stack: ExecutorStates,
) -> tuple[RankMemory, ...]:
    """Peak and timeline of each rank's memory.

    graph   of the plan's micro-batch and tp
    blocks  of each virtual stage
    """
    groups = [data_group(plan, rank, cluster, stack) for rank in range(plan.degrees.pp)]
    buffers = unit_buffers(graph, groups[0], tied=plan.tied_parameters)
    refs = [graph.chain[cut.first_block : cut.last_block] for cut in plan.stages]
    blocks = [
        [buffers[cut.first_block + at].beside(block) for at, block in enumerate(own)]
        for cut, own in zip(plan.stages, blocks, strict=True)
    ]
    given = float(graph.sample_bytes * plan.micro_batch * plan.num_microbatches)
    found = []
    for rank, group in enumerate(groups):
        stages = plan.stages_of(rank)
        held = elements_of(graph, [refs[s] for s in stages], plan.shares)
        on_host = held_by_stages(graph, [refs[s] for s in stages], plan.shares)
        found.append(
            rank_memory(
                plan,
                rank,
                stages={s: stage_memory(graph, plan, s, blocks[s]) for s in stages},
                static=executor_static_bytes(held, group),
                timeline=timeline,
                capacity_bytes=group.device.usable_bytes,
                given_bytes=given,
                exchange_bytes=exchange_bytes(held.gradients, group),
                host_bytes=host_bytes(on_host, group),
            )
        )
    return tuple(found)
