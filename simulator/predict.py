"""Predicting a plan: its step time, memory, money and energy, part by part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from profiles.document import content_hash
from profiles.errors import InputError, MismatchError
from profiles.hardware.cluster import Cluster
from profiles.hardware.device import ActionOverhead, ReferencePoint
from profiles.model.block_order import crossing, crossing_bytes, in_order
from profiles.model.graph import ModelGraph
from profiles.sourced import Sourced
from simulator.block_cost import BlockCost, price_block
from simulator.comm_cost import CommCost, price_collective
from simulator.in_step import exposed_seconds
from simulator.memory import (
    StageBytes,
    branched_stage_bytes,
    rank_memory,
    stage_bytes,
    static_bytes,
)
from simulator.money import kwh_per_million_tokens, usd_per_million_tokens
from simulator.plan import Plan
from simulator.predicted_events import predicted_events
from simulator.prediction import (
    Component,
    CutTensor,
    Interval,
    Prediction,
    RankMemory,
    SourceTag,
    StagePrediction,
)
from simulator.schedule import Schedule, build_schedule
from simulator.schedule_shape import SPLIT_SCHEDULES
from simulator.stack import Stack, load_stack
from simulator.step_tail import Tail, held_parameters, tail_of
from simulator.timeline import Durations, Timeline, simulate
from simulator.weight_gradients import stage_weight_s

# Half-width of the 90 % interval of the peak: what a caching allocator rounds and keeps is not
# modelled (torch's CUDACachingAllocator rounds to 512 B and splits blocks; assumed).
_MEMORY_WIDTH = 0.05


class Traced(Protocol):
    """What predict needs of a traced model (profiles.model.traced.TracedModel)."""

    content_hash: str

    def at(self, micro_batch: int, tp: int = 1) -> ModelGraph: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """Times of one virtual stage per micro-batch; intervals in seconds.

    gather_s  exposed gathering of sharded parameters (ZeRO-3), part of forward and backward
    runtime_s  of the pipeline runtime, part of forward and backward
    weight_s  part of backward that is W, where the schedule splits it
    """

    forward: Interval
    backward: Interval
    recompute_s: float
    launch_s: float
    runtime_s: float
    tp_s: float
    gather_s: float
    weight_s: float = 0.0


def predict(
    plan: Plan,
    traced: Traced,
    cluster: Cluster,
    *,
    stack: Stack | None = None,
    price: Sourced | None = None,
) -> Prediction:
    """What the plan would do on the cluster.

    price  US dollars per device-hour, or None

    The step is the slowest rank's: its actions in the timeline and its tail (gradient exchange,
    optimizer). The components are that rank's time, and add up to the step: work, communication
    inside blocks, idle time in the pipeline split into what would remain if sends took no time
    (bubble) and the rest (pipeline communication), and the tail.
    Errors of one kind go together, so the ends of the interval are the step with every cost at
    its own end. MFU is the flop of forward and backward without recomputation over step time and
    the sum of the devices' dense peaks in the workload's precision (PaLM, arXiv 2204.02311,
    appendix B).

    Raises MismatchError for a plan that does not cover the model or needs more devices than there
    are, InputError where a device has no rate for the precision.
    """
    stack = stack or load_stack()
    graph = traced.at(plan.micro_batch, plan.tp)
    _check(plan, traced, graph, cluster)
    if graph.branches:
        graph = in_order(graph, plan.block_entries)
    schedule = build_schedule(
        plan.schedule,
        num_ranks=plan.pp,
        num_microbatches=plan.num_microbatches,
        stages_per_rank=plan.vpp,
    )
    blocks = [_stage_blocks(plan, s, graph, cluster) for s in range(len(plan.stages))]
    costs = [
        replace(
            _stage_cost(plan, s, blocks[s], cluster, stack),
            weight_s=stage_weight_s(plan, s, graph, cluster),
        )
        for s in range(len(plan.stages))
    ]
    sends = _sends(plan, graph, cluster)
    tails = [tail_of(plan, rank, graph, cluster=cluster, stack=stack) for rank in range(plan.pp)]
    timeline = simulate(schedule, _durations(costs, sends, "value"))
    step, critical = _step(plan, timeline, [t.total_s for t in tails])
    interval = _interval(plan, schedule, costs, sends, tails, step)
    components, bubble = _components(plan, schedule, costs, sends, tails, timeline, critical)
    ranks = _memory(plan, graph, blocks, timeline, cluster, stack)
    tokens = plan.workload.tokens_per_step
    tokens_per_s = Interval(
        value=tokens / step, low=tokens / interval.high, high=tokens / max(interval.low, 1e-12)
    )
    peak = max(rank.peak_bytes for rank in ranks)
    return Prediction(
        step_time_s=replace(interval, value=sum(part.time_s for part in components)),
        components=components,
        mfu=_mfu(plan, traced, cluster, interval),
        tokens_per_s=tokens_per_s,
        peak_memory_bytes=Interval(
            value=peak, low=peak * (1 - _MEMORY_WIDTH), high=peak * (1 + _MEMORY_WIDTH)
        ),
        usd_per_million_tokens=usd_per_million_tokens(tokens_per_s, plan.world_size, price),
        kwh_per_million_tokens=kwh_per_million_tokens(tokens_per_s, cluster),
        bubble_fraction=bubble,
        stages=_stage_predictions(plan, graph, costs, tails),
        ranks=ranks,
        events=predicted_events(plan, timeline, sends, tails),
        sources=_sources(plan, blocks, sends, tails),
        limit=_limit(components, ranks, critical),
        fits=all(rank.fits for rank in ranks),
        references=_references(plan, cluster),
    )


def _references(plan: Plan, cluster: Cluster) -> tuple[ReferencePoint, ...]:
    """The profile's word on the machine's speed; none where the devices are of several kinds."""
    devices = {cluster.device_at(plan.rank(rank)) for rank in range(plan.pp)}
    measured = devices.pop().measurements if len(devices) == 1 else None
    return measured.references if measured is not None else ()


def _check(plan: Plan, traced: Traced, graph: ModelGraph, cluster: Cluster) -> None:
    if len(graph.chain) != len(plan.block_entries):
        raise MismatchError(
            f"the plan cuts {len(plan.block_entries)} blocks, the model has {len(graph.chain)}: it "
            f"was made for another model (plan {plan.model_hash}, model {traced.content_hash})"
        )
    if plan.world_size > cluster.num_devices:
        raise MismatchError(
            f"the plan needs {plan.world_size} devices (pp {plan.pp} x dp {plan.dp} x tp "
            f"{plan.tp}), cluster {cluster.name} has {cluster.num_devices}"
        )
    for rank in range(plan.pp):
        device = cluster.device_at(plan.rank(rank))
        try:
            device.peak(plan.workload.compute_dtype)
        except InputError as error:
            if plan.workload.precision in ("bf16", "fp16"):
                twins = {"bfloat16", "float16"} & set(device.peak_flop_per_s)
                if twins:
                    continue
            raise InputError(f"{error} (--precision {plan.workload.precision})") from error


def _stage_blocks(plan: Plan, stage: int, graph: ModelGraph, cluster: Cluster) -> list[BlockCost]:
    cut = plan.stages[stage]
    devices = plan.tp_group(plan.pp_rank_of(stage))
    refs = graph.chain[cut.first_block : cut.last_block]
    return [
        price_block(graph.kinds[ref.kind], recompute=kind, devices=devices, cluster=cluster)
        for ref, kind in zip(refs, cut.recompute, strict=True)
    ]


def gather_seconds(
    block: BlockCost,
    *,
    zero_stage: int,
    group: tuple[int, ...],
    precision: str,
    cluster: Cluster,
    stack: Stack,
    pipelined: bool = True,
    sharing: int = 1,
) -> float:
    """Exposed seconds per micro-batch in which a block waits for its sharded parameters and for
    the sums of its sharded gradients.

    pipelined  True under a pipeline schedule: torch's runtime leaves parameters whole after a
               backward (PipelineStage.backward_maybe_with_nosync), so that ZeRO-3 gathers once
               per micro-batch, after its forward freed them, and ZeRO-2 never; gradients are summed
               once per step (step_tail.py). Without a pipeline FSDP2 frees parameters after each
               backward (ZeRO-3 gathers twice, ZeRO-2 once) and sums gradients in each.
    sharing    dp groups of the same nodes that communicate at the same time

    A stack that prefetches hides a part of what fits under the block's own work
    (in_step.exposed_seconds).
    """
    count = {2: 0 if pipelined else 1, 3: 1 if pipelined else 2}.get(zero_stage, 0)
    if count == 0 or len(group) < 2:
        return 0.0
    sizes = stack.bytes_of(precision)

    def price(operation: str, bytes_each: float) -> float:
        size = float(block.parameter_count * bytes_each)
        return price_collective(operation, size, group, cluster, sharing=sharing).time_s

    gather = price("all_gather", sizes.compute_bytes)
    messages = [gather, gather if count == 2 else 0.0]
    if not pipelined:
        messages[1] += price("reduce_scatter", sizes.gradient_bytes)
    device = cluster.device_at(group[0])
    if not stack.behaviour.gather_overlaps_compute:
        return sum(messages)
    work = (block.forward.value, block.backward.value)
    return sum(exposed_seconds(m, w, device) for m, w in zip(messages, work, strict=True))


def _stage_cost(
    plan: Plan, stage: int, blocks: list[BlockCost], cluster: Cluster, stack: Stack
) -> StageCost:
    group = plan.dp_group(plan.pp_rank_of(stage))
    gather = sum(
        gather_seconds(
            b,
            zero_stage=plan.zero_stage,
            group=group,
            precision=plan.workload.precision,
            cluster=cluster,
            stack=stack,
            pipelined=plan.pp > 1,
            sharing=plan.tp,
        )
        for b in blocks
    )
    tp_forward = sum(b.tp_forward_s for b in blocks)
    tp_backward = sum(b.tp_backward_s for b in blocks)
    more = missing_overhead(blocks, plan.vpp)
    forward_more = more.forward_cpu_s + more.forward_outside_s
    backward_more = more.backward_cpu_s + more.backward_outside_s
    return StageCost(
        forward=_total([b.forward for b in blocks], tp_forward + gather / 2 + forward_more),
        backward=_total([b.backward for b in blocks], tp_backward + gather / 2 + backward_more),
        recompute_s=sum(b.recompute_s for b in blocks),
        launch_s=sum(b.launch_s for b in blocks),
        runtime_s=sum(b.runtime_s for b in blocks)
        + more.forward_outside_s
        + more.backward_outside_s,
        tp_s=tp_forward + tp_backward,
        gather_s=gather,
    )


def missing_overhead(blocks: list[BlockCost], vpp: int) -> ActionOverhead:
    """Overhead of a stage's actions that its blocks do not carry: none where vpp is 1.

    Blocks are measured with one stage per rank, and carry equal shares of its actions' overhead. A
    rank of vpp stages has vpp times the actions with the same blocks: a vpp-th is in each's.
    """
    found = [b.action for b in blocks if b.action is not None]
    rest = (1 - 1 / vpp) / len(found) if found else 0.0
    return ActionOverhead(
        forward_cpu_s=rest * sum(a.forward_cpu_s for a in found),
        forward_outside_s=rest * sum(a.forward_outside_s for a in found),
        backward_cpu_s=rest * sum(a.backward_cpu_s for a in found),
        backward_outside_s=rest * sum(a.backward_outside_s for a in found),
    )


def _total(parts: list[Interval], more_s: float) -> Interval:
    """Sum of the parts and of communication, whose interval is +-30 % (comm_cost)."""
    return Interval(
        value=sum(p.value for p in parts) + more_s,
        low=sum(p.low for p in parts) + 0.7 * more_s,
        high=sum(p.high for p in parts) + 1.3 * more_s,
    )


def _sends(plan: Plan, graph: ModelGraph, cluster: Cluster) -> list[CommCost | None]:
    """Cost of crossing the cut before each stage; None where both sides are one rank."""
    found: list[CommCost | None] = [None]
    for stage in range(1, len(plan.stages)):
        source, target = plan.pp_rank_of(stage - 1), plan.pp_rank_of(stage)
        if source == target:
            found.append(None)
            continue
        devices = (plan.rank(source), plan.rank(target))
        size = crossing_bytes(graph, plan.stages[stage].first_block)
        found.append(price_collective("send", size, devices, cluster, sharing=plan.tp))
    return found


def _durations(costs: list[StageCost], sends: list[CommCost | None], end: str) -> Durations:
    name = {"value": "time_s", "low": "low_s", "high": "high_s"}[end]
    crossing = tuple(0.0 if s is None else float(getattr(s, name)) for s in sends)
    backward = tuple(float(getattr(c.backward, end)) for c in costs)
    shares = [c.weight_s / c.backward.value if c.backward.value else 0.0 for c in costs]
    return Durations(
        forward_s=tuple(float(getattr(c.forward, end)) for c in costs),
        backward_s=backward,
        backward_input_s=tuple(b * (1 - w) for b, w in zip(backward, shares, strict=True)),
        backward_weight_s=tuple(b * w for b, w in zip(backward, shares, strict=True)),
        send_forward_s=crossing,
        send_backward_s=crossing,
    )


def _step(plan: Plan, timeline: Timeline, tails: list[float]) -> tuple[float, int]:
    ends = [timeline.rank_end_s(rank) + tails[rank] for rank in range(plan.pp)]
    step = max(ends)
    return step, ends.index(step)


def _interval(
    plan: Plan,
    schedule: Schedule,
    costs: list[StageCost],
    sends: list[CommCost | None],
    tails: list[Tail],
    step: float,
) -> Interval:
    low = simulate(schedule, _durations(costs, sends, "low"))
    high = simulate(schedule, _durations(costs, sends, "high"))
    low_tails = [t.data_parallel_low_s + t.optimizer_low_s for t in tails]
    high_tails = [t.data_parallel_high_s + t.optimizer_high_s for t in tails]
    return Interval(
        value=step,
        low=min(step, _step(plan, low, low_tails)[0]),
        high=max(step, _step(plan, high, high_tails)[0]),
    )


def _components(
    plan: Plan,
    schedule: Schedule,
    costs: list[StageCost],
    sends: list[CommCost | None],
    tails: list[Tail],
    timeline: Timeline,
    critical: int,
) -> tuple[tuple[Component, ...], float]:
    """The critical rank's time by cause, and the share of the step that is bubble."""
    micro = plan.num_microbatches
    mine = [costs[s] for s in plan.stages_of(critical)]
    busy = micro * sum(c.forward.value + c.backward.value for c in mine)
    idle = max(0.0, timeline.rank_end_s(critical) - busy)
    free = simulate(schedule, _durations(costs, [None] * len(sends), "value"))
    bubble = min(idle, max(0.0, free.rank_end_s(critical) - busy))
    recompute = micro * sum(c.recompute_s for c in mine)
    launch = micro * sum(c.launch_s for c in mine)
    runtime = micro * sum(c.runtime_s for c in mine)
    tp = micro * sum(c.tp_s for c in mine)
    gather = micro * sum(c.gather_s for c in mine)
    tail = tails[critical]
    parts = {
        "compute": busy - recompute - launch - runtime - tp - gather,
        "recompute": recompute,
        "launch": launch,
        "runtime": runtime,
        "tensor_parallel_communication": tp,
        "pipeline_communication": idle - bubble,
        "data_parallel_communication": tail.data_parallel_s + gather,
        "bubble": bubble,
        "optimizer": tail.optimizer_s,
    }
    components = tuple(Component(name=name, time_s=value) for name, value in parts.items())
    total = sum(parts.values())
    return components, bubble / total if total else 0.0


def _memory(
    plan: Plan,
    graph: ModelGraph,
    blocks: list[list[BlockCost]],
    timeline: Timeline,
    cluster: Cluster,
    stack: Stack,
) -> tuple[RankMemory, ...]:
    found = []
    for rank in range(plan.pp):
        stages: dict[int, StageBytes] = {
            s: _stage_bytes(graph, plan, s, blocks[s], stack) for s in plan.stages_of(rank)
        }
        refs = [
            ref
            for s in stages
            for ref in graph.chain[plan.stages[s].first_block : plan.stages[s].last_block]
        ]
        static = static_bytes(
            float(sum(held_parameters(graph, refs))),
            float(max(b.parameter_count for s in stages for b in blocks[s])),
            stack=stack,
            precision=plan.workload.precision,
            optimizer=plan.workload.optimizer,
            zero_stage=plan.zero_stage,
            dp=plan.dp,
            pp=plan.pp,
        )
        found.append(
            rank_memory(
                plan,
                rank,
                stages=stages,
                static=static,
                timeline=timeline,
                capacity_bytes=cluster.device_at(plan.rank(rank)).usable_bytes,
                stack=stack,
            )
        )
    return tuple(found)


def _stage_bytes(
    graph: ModelGraph, plan: Plan, stage: int, blocks: list[BlockCost], stack: Stack
) -> StageBytes:
    apart = stack.behaviour.receive_buffers_per_microbatch
    if not graph.branches:
        last = stage == len(plan.stages) - 1
        return stage_bytes(
            blocks,
            is_first=stage == 0,
            is_last=last,
            buffers_apart=apart,
            splits_backward=plan.schedule in SPLIT_SCHEDULES,
        )
    cut = plan.stages[stage]
    return branched_stage_bytes(
        blocks,
        received=crossing_bytes(graph, cut.first_block),
        sent=crossing_bytes(graph, cut.last_block),
        buffers_apart=apart,
        splits_backward=plan.schedule in SPLIT_SCHEDULES,
    )


def _mfu(plan: Plan, traced: Traced, cluster: Cluster, step: Interval) -> Interval:
    whole = traced.at(plan.micro_batch, 1)
    flop = (whole.forward_flop + whole.backward_flop) * plan.num_microbatches * plan.dp
    dtype = plan.workload.compute_dtype
    peak = 0.0
    for index in range(plan.world_size):
        rates = cluster.device_at(index).peak_flop_per_s
        twin = {"float16": "bfloat16", "bfloat16": "float16"}.get(dtype, dtype)
        peak += (rates[dtype] if dtype in rates else rates[twin]).value
    return Interval(
        value=flop / (step.value * peak),
        low=flop / (step.high * peak),
        high=flop / (max(step.low, 1e-12) * peak),
    )


def _stage_predictions(
    plan: Plan, graph: ModelGraph, costs: list[StageCost], tails: list[Tail]
) -> tuple[StagePrediction, ...]:
    return tuple(
        StagePrediction(
            stage=s,
            rank=plan.rank(plan.pp_rank_of(s)),
            forward_s=cost.forward.value,
            backward_s=cost.backward.value,
            optimizer_s=tails[plan.pp_rank_of(s)].optimizer_s,
            data_parallel_s=tails[plan.pp_rank_of(s)].data_parallel_s,
            runtime_s=cost.runtime_s,
            receives=_receives(plan, s, graph),
        )
        for s, cost in enumerate(costs)
    )


def _receives(plan: Plan, stage: int, graph: ModelGraph) -> tuple[CutTensor, ...] | None:
    if not graph.branches:
        return None
    return tuple(
        CutTensor(
            made_by=graph.chain[branch.producer].entry,
            used_by=tuple(graph.chain[k].entry for k in branch.consumers),
            memory_bytes=float(branch.spec.memory_bytes),
        )
        for branch in crossing(graph, plan.stages[stage].first_block)
    )


def _sources(
    plan: Plan, blocks: list[list[BlockCost]], sends: list[CommCost | None], tails: list[Tail]
) -> tuple[SourceTag, ...]:
    """What the work and communication of all ranks rests on, as shares of it."""
    seconds: dict[tuple[str, str, str], float] = {}

    def add(name: str, method: str, source: str, time_s: float) -> None:
        key = (name, method, source)
        seconds[key] = seconds.get(key, 0.0) + time_s

    micro = plan.num_microbatches
    for stage in blocks:
        for block in stage:
            for name, method, source, time_s in block.methods:
                add(name, method, source, micro * time_s)
            tp = block.tp_forward_s + block.tp_backward_s
            if tp:
                add("tensor-parallel communication", "assumed", "link formulas", micro * tp)
    for send in sends:
        if send is not None:
            add("pipeline sends", send.method, send.source, 2 * micro * send.time_s)
    for tail in tails:
        add("optimizer", tail.method, tail.source, tail.optimizer_s)
        if tail.data_parallel_s:
            add(
                "data-parallel communication",
                "assumed",
                "link tables and formulas",
                tail.data_parallel_s,
            )
    total = sum(seconds.values()) or 1.0
    ordered = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        SourceTag(name=name, method=method, source=source, share=time_s / total)
        for (name, method, source), time_s in ordered
    )


def _limit(components: tuple[Component, ...], ranks: tuple[RankMemory, ...], critical: int) -> str:
    tight = max(ranks, key=lambda rank: rank.peak_bytes / rank.capacity_bytes)
    use = tight.peak_bytes / tight.capacity_bytes
    if use > 1:
        return f"memory of rank {tight.rank}: {use:.0%} of what the device has"
    largest = max(components, key=lambda part: part.time_s)
    total = sum(part.time_s for part in components)
    name = largest.name.replace("_", " ")
    return (
        f"{name} of pipeline rank {critical} ({largest.time_s / total:.0%} of the step); memory of "
        f"rank {tight.rank} is {use:.0%} full"
    )


def plan_hash(plan: Plan) -> str:
    """What a measurement names its plan by."""
    return content_hash(plan)
