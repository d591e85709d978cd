"""What a rank does once per step: gradient exchange, parameter exchange and the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import Device
from profiles.model.graph import BlockRef, ModelGraph
from simulator.traced.comm_cost import CommCost, price_collective
from simulator.traced.in_step import step_overhead_s
from simulator.traced.op_cost import OpCost, moved_cost
from simulator.traced.stack import Stack
from simulator.values.plan import Plan
from simulator.values.prediction import Interval

# Gradients are summed in pieces of this size, as DDP does (bucket_cap_mb, torch documentation).
GRADIENT_BUCKET_BYTES = 25 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Seconds after the last backward: exchange of gradients, then the optimizer."""

    exchange: Interval
    optimizer: Interval
    method: str
    source: str

    @property
    def data_parallel_s(self) -> float:
        return self.exchange.value

    @property
    def optimizer_s(self) -> float:
        return self.optimizer.value

    @property
    def total_s(self) -> float:
        return self.exchange.value + self.optimizer.value


def held_parameters(graph: ModelGraph, refs: Sequence[BlockRef]) -> tuple[int, ...]:
    """Elements of every parameter that a rank with these blocks holds, shared ones once."""
    seen: set[str] = set()
    counts = []
    for ref in refs:
        for p in graph.kinds[ref.kind].parameters:
            own = f"{ref.entry}.{p.name}" if ref.entry else p.name
            names = {p.tied_to} if p.tied_to else {own, p.name if not ref.entry else own}
            if names & seen:
                continue
            seen |= names
            counts.append(p.spec.num_elements)
    return tuple(counts)


def price_tail(
    counts: tuple[int, ...],
    *,
    group: tuple[int, ...],
    zero_stage: int,
    precision: str,
    optimizer: str,
    cluster: Cluster,
    stack: Stack,
    pipelined: bool = True,
    sharing: int = 1,
) -> Tail:
    """The tail of a rank that holds parameters of these sizes; `group` is its dp group.

    ZeRO 0: all-reduce of gradients. 1: the same, and updated parameters back to everyone. 2 and 3
    under a pipeline: reduce-scatter of gradients, and (2) one gather of the parameters for the next
    step; without one, gradients are summed in each backward (stage_cost.gather_seconds). With the
    optimizer goes what each step takes whatever its size (in_step.step_overhead_s).
    sharing: dp groups of the same nodes that communicate at the same time. On a CPU nothing hides
    what the executor does one after the other: buckets are put together, summed, divided and
    copied back, and ZeRO 1 sends every parameter by itself.
    """
    n = float(sum(counts))
    dp = len(group)
    sizes = stack.bytes_of(precision)
    device = cluster.device_at(group[0])
    exchanges: list[CommCost | OpCost] = []
    if dp > 1:

        def price(operation: str, size_bytes: float) -> CommCost:
            return price_collective(operation, size_bytes, group, cluster, sharing=sharing)

        gradient = n * sizes.gradient_bytes
        weights = n * sizes.compute_bytes
        on_cpu = device.type == "cpu"
        each = [c * sizes.gradient_bytes for c in counts]
        if zero_stage < 2:
            buckets = gradient_buckets(each) if on_cpu else [gradient]
            exchanges += [price("all_reduce", size) for size in buckets]
        if zero_stage < 2 and on_cpu:
            exchanges += _bucket_copies(buckets, each, device)
        if zero_stage == 1:
            updated = [c * sizes.compute_bytes for c in counts] if on_cpu else [weights]
            exchanges += [price("broadcast", size) for size in updated]
        if zero_stage >= 2 and pipelined:
            exchanges.append(price("reduce_scatter", gradient))
        if zero_stage == 2 and pipelined:
            exchanges.append(price("all_gather", weights))
    shard = dp if zero_stage >= 1 else 1
    traffic = stack.optimizer_traffic_bytes.of(optimizer)
    if device.type == "cpu":
        # Torch updates one parameter after the other there.
        costs = [moved_cost("optimizer", traffic * c / shard, device) for c in counts]
    else:
        costs = [moved_cost("optimizer", traffic * n / shard, device)]
    return Tail(
        exchange=_interval(exchanges, 0.0),
        optimizer=_interval(costs, step_overhead_s(device)),
        method=costs[0].method if costs else "assumed",
        source=costs[0].source if costs else "",
    )


def gradient_buckets(sizes: Sequence[float]) -> list[float]:
    """Bytes of the pieces in which gradients of these bytes are summed: whole gradients in their
    order, until `GRADIENT_BUCKET_BYTES` are reached."""
    buckets, held = [], 0.0
    for size in sizes:
        held += size
        if held >= GRADIENT_BUCKET_BYTES:
            buckets.append(held)
            held = 0.0
    return [*buckets, held] if held else buckets


def _bucket_copies(
    buckets: Sequence[float], gradients: Sequence[float], device: Device
) -> list[OpCost]:
    """Into one tensor, its division by the number of replicas, and back into each gradient."""
    into = [moved_cost(name, 2 * size, device) for size in buckets for name in ("cat", "div")]
    return [*into, *(moved_cost("copy_", 2 * size, device) for size in gradients)]


def _interval(costs: Sequence[CommCost | OpCost], more_s: float) -> Interval:
    return Interval(
        value=sum(cost.time_s for cost in costs) + more_s,
        low=sum(cost.low_s for cost in costs) + more_s,
        high=sum(cost.high_s for cost in costs) + more_s,
    )


def tail_of(plan: Plan, pp_rank: int, graph: ModelGraph, *, cluster: Cluster, stack: Stack) -> Tail:
    """The tail of a pipeline rank of a plan."""
    refs = [
        ref
        for stage in plan.stages_of(pp_rank)
        for ref in graph.chain[plan.stages[stage].first_block : plan.stages[stage].last_block]
    ]
    return price_tail(
        held_parameters(graph, refs),
        group=plan.dp_group(pp_rank),
        zero_stage=plan.zero_stage,
        precision=plan.workload.precision,
        optimizer=plan.workload.optimizer,
        cluster=cluster,
        stack=stack,
        pipelined=plan.pp > 1,
        sharing=plan.tp,
    )
