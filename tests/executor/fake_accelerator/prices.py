"""What the simulator prices of a plan that a walk counts: each rank's memory, and its messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import shardwright
from profiles.model.graph import ModelGraph, Phase
from profiles.model.tracing.block_order import crossing_bytes, in_order
from profiles.model.tracing.traced import TracedModel
from simulator.memory.data_group import data_group
from simulator.schedules.schedule import ActionKind as ActionKind
from simulator.traced import step_tail
from simulator.traced.block_cost import price_block, recomputed_ops
from simulator.traced.predict import predict
from simulator.training_run.framework.framework import load_stack
from simulator.values.plan import Plan
from tests.executor.fake_accelerator.watch import Message

CLUSTER = "1x8xh100-sxm"
# c10d's words for an operation of a dp group.
_WORDS = {
    "allreduce": "all_reduce",
    "_allgather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
}
Totals = dict[tuple[str, str], float]
"""(axis, operation) -> bytes of a step."""


def priced_peaks(plan: Plan, traced: TracedModel) -> list[float]:
    """The peak of each pipeline rank."""
    prediction = predict(plan, traced, shardwright.cluster(CLUSTER))
    return [rank.peak_bytes for rank in prediction.ranks]


def priced_messages(plan: Plan, traced: TracedModel, rank: int) -> Totals:
    """What a rank of this number exchanges in a step, by axis and operation."""
    graph: ModelGraph = traced.at(plan.micro_batch, plan.degrees.tp)
    if graph.branches:
        graph = in_order(graph, plan.block_entries)
    cluster, stack = shardwright.cluster(CLUSTER), load_stack()
    degrees, micro = plan.degrees, plan.num_microbatches
    at = degrees.coordinates(rank)
    found: Counter[tuple[str, str]] = Counter()
    with _exchanges() as seen:
        group = data_group(plan, at.pp, cluster, stack)
        step_tail.tail_of(plan, at.pp, graph, group)
    replicas = set(degrees.group("dp", pp=at.pp))
    split = set(degrees.group("tp", pp=at.pp)) if degrees.tp > 1 else set()
    for operation, size, devices in seen:
        axis = "tp" if split == {*devices} else "dp" if replicas.issuperset(devices) else "tie"
        found[axis, operation] += size
    sizes = stack.bytes_of(plan.workload.precision)
    for number in plan.stages_of(at.pp):
        cut = plan.stages[number]
        refs = graph.chain[cut.first_block : cut.last_block]
        for ref, kind in zip(refs, cut.recompute, strict=True):
            block = graph.kinds[ref.kind]
            cost = price_block(
                block, recompute=kind, devices=degrees.group("tp", pp=at.pp), cluster=cluster
            )
            if degrees.dp > 1 and plan.zero_stage >= 2:
                forward, backward, summed = cost.moved(group)
                if group.gathers:
                    weights = micro * (forward + backward) * sizes.compute_bytes
                    found["dp", "all_gather"] += weights
                gradients = micro * summed * sizes.gradient_bytes
                found["dp", "reduce_scatter"] += gradients
                if degrees.dp_replicate > 1:
                    found["dp", "all_reduce"] += gradients / plan.shares
            if degrees.tp > 1:
                ops = [block.forward_ops[i] for i in recomputed_ops(block, kind)]
                repeated = {op.module for op in ops if op.matmul is not None}
                for c in block.collectives:
                    again = c.phase is not Phase.BACKWARD and c.module in repeated
                    found["tp", c.operation] += micro * c.size_bytes * (1 + again)
        for border, other in ((cut.first_block, number - 1), (cut.last_block, number + 1)):
            outside = not 0 <= other < len(plan.stages)
            if outside or plan.pp_rank_of(other) == at.pp:
                continue
            size = micro * crossing_bytes(graph, border)
            found["pp", "send"] += size
            found["pp", "recv"] += size
    return {key: size for key, size in found.items() if size}


def counted_messages(plan: Plan, rank: int, messages: list[Message]) -> Totals:
    """What a walk has counted, in the same words."""
    degrees = plan.degrees
    at = degrees.coordinates(rank)
    replicas = tuple(degrees.rank(pp=at.pp, dp=d, tp=at.tp) for d in range(degrees.dp))
    shards = degrees.shard_replicas
    axes = {
        replicas: "dp",
        replicas[at.dp // shards * shards :][:shards]: "dp",
        replicas[at.dp % shards :: shards]: "dp",
        tuple(degrees.rank(pp=at.pp, dp=at.dp, tp=t) for t in range(degrees.tp)): "tp",
    }
    found: Counter[tuple[str, str]] = Counter()
    for message in messages:
        operation = _WORDS.get(message.operation, message.operation)
        axis = "pp" if operation in ("send", "recv") else axes.get(tuple(message.ranks), "tie")
        found[axis, operation] += message.size_bytes
    return dict(found)


@contextmanager
def _exchanges() -> Iterator[list[tuple[str, float, tuple[int, ...]]]]:
    """What the tail of a step prices inside it, as it is priced."""
    seen: list[tuple[str, float, tuple[int, ...]]] = []
    original: Any = step_tail.exchange_in_step

    def priced(operation: str, size: float, devices: Any, *rest: Any, **more: Any) -> Any:
        seen.append((operation, size, tuple(devices)))
        return original(operation, size, devices, *rest, **more)

    step_tail.exchange_in_step = priced
    try:
        yield seen
    finally:
        step_tail.exchange_in_step = original
