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
from simulator.memory.moments import Moment, rank_moments
from simulator.memory.sharded_units import unit_buffers
from simulator.memory.static import StaticBytes
from simulator.schedules.action import ActionKind
from simulator.schedules.schedule import schedule_kind
from simulator.schedules.timeline import Timeline
from simulator.training_run.framework.executor_states import ExecutorStates
from simulator.values.plan import Plan
from simulator.values.prediction import MemorySample, RankMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """Memory of one micro-batch in a virtual stage, on its rank.

    kept_bytes            from the forward to the backward of the micro-batch
    forward_peak_bytes, backward_peak_bytes  highest bytes while the micro-batch runs, in addition
                                             to other micro-batches and messages
    received_bytes, sent_bytes  activations received and sent over its cuts; gradients in the other
                                direction have the same size
    first_transient_bytes  during the backward of its first block, which runs last
    weight_bytes          from the I to the W of the micro-batch, if the backward is split
    gradient_bytes        gradients of its outputs that its blocks do not count; they are counted
                          while any action of the rank runs
    """

    kept_bytes: float
    forward_peak_bytes: float
    backward_peak_bytes: float
    received_bytes: float
    sent_bytes: float
    first_transient_bytes: float = 0.0
    weight_bytes: float = 0.0
    gradient_bytes: float = 0.0


def stage_bytes(
    blocks: Sequence[BlockBytes],
    *,
    received: float,
    sent: float,
    passed_on: bool = False,
    branched: bool = False,
    splits_backward: bool = False,
) -> StageBytes:
    """The memory of a stage from its blocks, in the order in which they run.

    received, sent    bytes over the cuts before and after the stage
    passed_on         whether the earlier stage is on the same rank: its output, which is the input
                      of this stage, is then counted there only
    branched          for a graph with branches: a tensor between blocks exists to the end of the
                      micro-batch's backward, once for all blocks that use it and all stages that
                      pass it on. In a chain, a block's output is freed when the next block's
                      backward ends, or its forward if no backward needs it; a stage keeps its
                      inputs and outputs
    splits_backward   an I saves the inputs of W block by block, from the last to the first. During
                      a block's backward, the inputs saved by later blocks exist; its own are added
                      at its end. An unsplit B of such a schedule counts as an I

    A stage has the tables of the block with the largest ones: most layers read the same.
    The gradients of the stage's outputs exist to the end of its backward. In a chain, the single
    gradient is counted for the last block only, which usually needs most. With branches, earlier
    blocks have gradients too, so they are counted for the whole step.
    """
    outputs = [block.output_bytes for block in blocks]
    tables = max(block.table_bytes for block in blocks)
    if not branched:
        kept = (block.input_bytes - block.freed_input_bytes for block in blocks[1:])
        outputs = [*kept, sent]
    held = first = tables + (0.0 if passed_on else received)
    forward_peak = backward_peak = 0.0
    weights = [block.weight_bytes * splits_backward for block in blocks]
    aside = sum(weights)
    freed = [0.0, *(block.freed_input_bytes for block in blocks[1:])]
    for block, weight, taken, output in zip(blocks, weights, freed, outputs, strict=True):
        before = held + block.saved_bytes
        forward_peak = max(forward_peak, before + taken + block.forward_transient_bytes)
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
        gradient_bytes=sent * branched,
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
        passed_on=stage > 0 and plan.pp_rank_of(stage - 1) == plan.pp_rank_of(stage),
        branched=bool(graph.branches),
        splits_backward=schedule_kind(plan.schedule).splits_backward,
    )


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
    early: bool = False,
) -> RankMemory:
    """Peak and timeline of a pipeline rank's memory over the step.

    given_bytes     inputs and targets of all micro-batches; they count as activations
    exchange_bytes  allocated and freed during the exchange of gradients
    host_bytes      in host memory
    early           receives are posted early (simulator/memory/moments.py, rank_moments)

    Gradients are freed after the optimizer step, so a stage's gradients exist from its first
    backward on. simulator/memory/moments.py lists the micro-batches kept and the messages in
    transit during each action. With a split backward, a micro-batch keeps `weight_bytes` from its I
    to its W; W needs no additional memory.
    """
    level = static.parameters + static.optimizer + given_bytes
    share = static.gradients / max(1, len(stages))
    samples = [MemorySample(time_s=0.0, memory_bytes=level)]
    peaks = []
    own = [stages[stage] for stage in plan.stages_of(rank)]
    actions = [i for i, each in enumerate(timeline.ranks) if each == rank]
    for i, moment in zip(actions, rank_moments(plan.actions, early=early)[rank], strict=True):
        need = _need(moment, own, share)
        start_s, end_s = timeline.start_s[i], timeline.end_s[i]
        peaks.append((need, start_s))
        samples.append(MemorySample(time_s=start_s, memory_bytes=level + need.total))
        samples.append(MemorySample(time_s=end_s, memory_bytes=level + need.left))
    step_end_s = max(timeline.end_s)
    # The last gradients are being sent until the step ends.
    sent = sum(
        stages[stage].received_bytes
        for stage in plan.stages_of(rank)
        if stage and plan.pp_rank_of(stage - 1) != rank
    )
    at_end = _Need(gradients=static.gradients, messages=sent, rise=exchange_bytes)
    samples += [
        MemorySample(time_s=step_end_s, memory_bytes=level + each)
        for each in (at_end.total, static.gradients)
    ]
    peak, peak_time_s = max([*peaks, (at_end, step_end_s)], key=lambda each: each[0].total)
    return RankMemory(
        rank=plan.degrees.rank(pp=rank),
        parameters_bytes=static.parameters,
        gradients_bytes=peak.gradients,
        optimizer_bytes=static.optimizer,
        activations_bytes=given_bytes + peak.kept,
        transient_bytes=peak.rise,
        communication_bytes=peak.messages,
        capacity_bytes=capacity_bytes,
        peak_time_s=peak_time_s,
        timeline=tuple(samples),
        host_bytes=host_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """Bytes of a rank during one action, without those that never change.

    kept      of micro-batches, including the one of the action
    messages  in transit
    rise      highest bytes in addition to the other fields
    left      bytes after the action
    """

    gradients: float
    kept: float = 0.0
    messages: float
    rise: float
    left: float = 0.0

    @property
    def total(self) -> float:
        return self.gradients + self.kept + self.messages + self.rise


def _need(moment: Moment, stages: Sequence[StageBytes], share: float) -> _Need:
    """The bytes at a moment; `share` are the gradient bytes of each stage."""
    running = stages[moment.turn]
    kept = messages = 0.0
    for at, stage in enumerate(stages):
        kept += moment.whole[at] * stage.kept_bytes + moment.half[at] * stage.weight_bytes
        messages += (moment.arriving[at] + moment.leaving[at]) * stage.received_bytes
        messages += moment.returning[at] * stage.sent_bytes + stage.gradient_bytes
    gradients, rise, freed = share * moment.begun, 0.0, 0.0
    if moment.kind is ActionKind.FORWARD:
        rise = running.forward_peak_bytes - running.kept_bytes
    elif moment.kind is ActionKind.BACKWARD_WEIGHT:
        freed = running.weight_bytes
    else:
        whole = moment.kind is ActionKind.BACKWARD
        freed = running.kept_bytes - (0.0 if whole else running.weight_bytes)
        rise = max(0.0, running.backward_peak_bytes - running.kept_bytes)
        # Gradients are allocated block by block while activations are freed.
        opening = share + running.first_transient_bytes - running.kept_bytes
        if moment.first and opening > rise:
            gradients, rise = gradients + share, opening - share
    begun = moment.begun + moment.first
    left = share * begun + kept - freed + messages
    if rise < 0.0:
        kept, rise = kept + rise, 0.0
    return _Need(gradients=gradients, kept=kept, messages=messages, rise=rise, left=left)


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
    buffers = unit_buffers(
        graph,
        groups[0],
        tied=plan.tied_parameters,
        openings={cut.first_block for cut in plan.stages} if groups[0].pipelined else (),
    )
    refs = [graph.chain[cut.first_block : cut.last_block] for cut in plan.stages]
    blocks = [
        [buffers[cut.first_block + at].add_to(block) for at, block in enumerate(own)]
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
                capacity_bytes=group.device.tensor_bytes,
                given_bytes=given,
                exchange_bytes=exchange_bytes(held.gradients, group),
                host_bytes=host_bytes(on_host, group),
                early=group.device.type == "cpu",
            )
        )
    return tuple(found)
