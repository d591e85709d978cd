"""The memory of every pipeline rank of a plan, from its blocks' costs and its timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.graph import ModelGraph
from profiles.model.tracing.block_order import crossing_bytes
from simulator.schedules.schedule import schedule_kind
from simulator.schedules.timeline import Timeline
from simulator.traced.block_cost import BlockCost
from simulator.traced.memory import (
    Elements,
    StageBytes,
    branched_stage_bytes,
    rank_memory,
    stage_bytes,
    static_bytes,
)
from simulator.traced.sharded_units import unit_buffers
from simulator.traced.stack import Stack
from simulator.traced.step_tail import GRADIENT_BUCKET_BYTES, Held, held_by_stages, stages_of
from simulator.values.plan import Plan
from simulator.values.prediction import RankMemory

Figures = TypeVar("Figures", float, npt.NDArray[np.float64])


def plan_memory(
    plan: Plan,
    graph: ModelGraph,
    blocks: list[list[BlockCost]],
    timeline: Timeline,
    cluster: Cluster,
    stack: Stack,
) -> tuple[RankMemory, ...]:
    """Each rank's peak and its course.

    graph   of the plan's micro-batch and tp;  blocks  the costs of each virtual stage's blocks
    """
    degrees = plan.degrees
    buffers = unit_buffers(
        graph,
        zero_stage=0 if plan.pipelined else plan.zero_stage,
        dp=degrees.dp,
        num_microbatches=plan.num_microbatches,
        sizes=stack.bytes_of(plan.workload.precision),
        on_cpu=cluster.device_at(0).type == "cpu",
    )
    blocks = [
        [
            buffers[ref.kind].beside(cost)
            for ref, cost in zip(graph.chain[cut.first_block : cut.last_block], own, strict=True)
        ]
        for cut, own in zip(plan.stages, blocks, strict=True)
    ]
    found = []
    for rank in range(degrees.pp):
        stages: dict[int, StageBytes] = {
            s: stage_memory(graph, plan, s, blocks[s], stack) for s in plan.stages_of(rank)
        }
        held = held_by_stages(graph, stages_of(plan, rank, graph))
        # Without a pipeline what FSDP2 gathers and sums goes with the blocks.
        units = [b for s in stages for b in blocks[s]] if plan.pipelined else []
        static = static_bytes(
            elements_of(held, units),
            stack=stack,
            precision=plan.workload.precision,
            optimizer=plan.workload.optimizer,
            zero_stage=plan.zero_stage,
            dp=degrees.dp,
            # A stage alone keeps its parameters whole between micro-batches as under a pipeline.
            pp=max(2, degrees.pp) if plan.pipelined else 1,
        )
        device = cluster.device_at(degrees.rank(pp=rank))
        found.append(
            rank_memory(
                plan,
                rank,
                stages=stages,
                static=static,
                timeline=timeline,
                capacity_bytes=device.usable_bytes,
                stack=stack,
                exchange_bytes=exchange_bytes(
                    float(sum(held.trained)), zero_stage=plan.zero_stage, dp=degrees.dp
                ),
            )
        )
    return tuple(found)


def elements_of(held: Held, blocks: Sequence[BlockCost]) -> Elements:
    """What is held, and the largest of these blocks."""
    trained = float(sum(held.trained))
    return Elements(
        total=trained + held.frozen,
        trained=trained,
        largest=float(max((block.parameter_count for block in blocks), default=0)),
        largest_trained=float(max((block.trained_count for block in blocks), default=0)),
    )


def exchange_bytes(total: Figures, *, zero_stage: int, dp: int) -> Figures:
    """What comes and goes behind the last backward of a rank: a bucket of gradients that are
    exchanged. The optimizer makes nothing (executor/rank.py).

    total  elements of the rank's trained parameters, or an array of them
    """
    bucket: Figures = 0.0 * total
    if dp > 1 and zero_stage < 2:
        bucket = np.minimum(4.0 * total, GRADIENT_BUCKET_BYTES)
    return bucket


def stage_memory(
    graph: ModelGraph, plan: Plan, stage: int, blocks: Sequence[BlockCost], stack: Stack
) -> StageBytes:
    """What a virtual stage keeps of its micro-batches."""
    apart = stack.behaviour.receive_buffers_per_microbatch
    if not graph.branches:
        last = stage == len(plan.stages) - 1
        return stage_bytes(
            blocks,
            is_first=stage == 0,
            is_last=last,
            buffers_apart=apart,
            splits_backward=schedule_kind(plan.schedule).splits_backward,
        )
    cut = plan.stages[stage]
    return branched_stage_bytes(
        blocks,
        received=crossing_bytes(graph, cut.first_block),
        sent=crossing_bytes(graph, cut.last_block),
        buffers_apart=apart,
        splits_backward=schedule_kind(plan.schedule).splits_backward,
    )
