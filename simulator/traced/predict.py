"""Predicting a plan: its step time, memory, money and energy, part by part."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from profiles.document import content_hash
from profiles.errors import InputError, MismatchError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import ReferencePoint
from profiles.model.graph import ModelGraph
from profiles.model.tracing.block_order import crossing, crossing_bytes, in_order
from profiles.sourced import Sourced
from simulator.memory.blocks import plan_memory
from simulator.mfu import graph_model_flop, mfu
from simulator.money import kwh_per_million_tokens, usd_per_million_tokens
from simulator.schedules.schedule import Schedule, build_schedule
from simulator.schedules.timeline import Durations, Timeline, simulate
from simulator.traced.block_cost import BlockCost, price_block
from simulator.traced.comm_cost import CommCost, price_collective
from simulator.traced.stack import Stack, load_stack
from simulator.traced.stage_cost import StageCost, stage_cost
from simulator.traced.step_tail import Tail, tail_of
from simulator.traced.weight_gradients import stage_weight_s
from simulator.values.plan import Plan
from simulator.values.prediction import (
    Component,
    CutTensor,
    Interval,
    Prediction,
    RankMemory,
    SourceTag,
    StagePrediction,
)
from simulator.values.timeline_events import timeline_events

# Half-width of the 90 % interval of the peak: what a caching allocator rounds and keeps is not
# modelled (torch's CUDACachingAllocator rounds to 512 B and splits blocks; assumed).
_MEMORY_WIDTH = 0.05


class Traced(Protocol):
    """What predict needs of a traced model (profiles.model.tracing.traced.TracedModel)."""

    content_hash: str

    def at(self, micro_batch: int, tp: int = 1) -> ModelGraph: ...


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
    optimizer). The components are that rank's time, and add up to the step: work, what it is slower
    than the mean of ranks with the same work (slowest_rank.py), communication inside blocks, idle
    time in the pipeline split into what would remain if sends took no time (bubble) and the rest
    (pipeline communication), and the tail.
    The ends of the interval are the step with every stage, message and tail at its own end; how
    far a stage's kernels are off together is said in kernel_errors.py.

    Raises MismatchError for a plan that does not cover the model or needs more devices than there
    are, InputError where a device has no rate for the precision.
    """
    stack = stack or load_stack()
    graph = traced.at(plan.micro_batch, plan.degrees.tp)
    _check(plan, traced, graph, cluster)
    if graph.branches:
        graph = in_order(graph, plan.block_entries)
    schedule = build_schedule(
        plan.schedule,
        num_ranks=plan.degrees.pp,
        num_microbatches=plan.num_microbatches,
        stages_per_rank=plan.degrees.vpp,
    )
    blocks = [_stage_blocks(plan, s, graph, cluster) for s in range(len(plan.stages))]
    costs = [
        replace(
            stage_cost(plan, s, blocks[s], cluster, stack),
            weight_s=stage_weight_s(plan, s, graph, cluster),
        )
        for s in range(len(plan.stages))
    ]
    sends = _sends(plan, graph, cluster)
    tails = [
        tail_of(plan, rank, graph, cluster=cluster, stack=stack) for rank in range(plan.degrees.pp)
    ]
    timeline = simulate(schedule, _durations(costs, sends, "value"))
    step, critical = _step(plan, timeline, [t.total_s for t in tails])
    interval = _interval(plan, schedule, costs, sends, tails, step)
    components, bubble = _components(plan, schedule, costs, sends, tails, timeline, critical)
    ranks = plan_memory(plan, graph, blocks, timeline, cluster, stack)
    count = plan.workload.counted_per_step
    per_s = Interval(
        value=count / step, low=count / interval.high, high=count / max(interval.low, 1e-12)
    )
    used = _mfu(plan, traced, cluster, interval)
    # Idle devices of the cluster are paid for and powered.
    usd = usd_per_million_tokens(per_s, cluster.num_devices, price)
    kwh = kwh_per_million_tokens(
        per_s, cluster, used.value * plan.degrees.num_devices / cluster.num_devices
    )
    tokens = plan.workload.counted_in == "tokens"
    peak = max(rank.peak_bytes for rank in ranks)
    return Prediction(
        step_time_s=replace(interval, value=sum(part.time_s for part in components)),
        components=components,
        mfu=used,
        tokens_per_s=per_s if tokens else None,
        samples_per_s=None if tokens else per_s,
        peak_memory_bytes=Interval(
            value=peak, low=peak * (1 - _MEMORY_WIDTH), high=peak * (1 + _MEMORY_WIDTH)
        ),
        price_usd_per_hour=price,
        usd_per_million_tokens=usd if tokens else None,
        usd_per_million_samples=None if tokens else usd,
        kwh_per_million_tokens=kwh if tokens else None,
        kwh_per_million_samples=None if tokens else kwh,
        bubble_fraction=bubble,
        stages=_stage_predictions(plan, graph, costs, tails),
        ranks=ranks,
        events=timeline_events(
            plan,
            timeline,
            send_s=[0.0 if send is None else send.time_s for send in sends],
            exchange_s=[tail.data_parallel_s for tail in tails],
            optimizer_s=[tail.optimizer_s for tail in tails],
        ),
        sources=_sources(plan, blocks, sends, tails),
        limit=_limit(plan, components, ranks, critical),
        fits=all(rank.fits for rank in ranks),
        references=_references(plan, cluster),
    )


def _references(plan: Plan, cluster: Cluster) -> tuple[ReferencePoint, ...]:
    """The profile's word on the machine's speed; none where the devices are of several kinds."""
    devices = {cluster.device_at(plan.degrees.rank(pp=rank)) for rank in range(plan.degrees.pp)}
    measured = devices.pop().measurements if len(devices) == 1 else None
    return measured.references if measured is not None else ()


def _check(plan: Plan, traced: Traced, graph: ModelGraph, cluster: Cluster) -> None:
    if len(graph.chain) != len(plan.block_entries):
        raise MismatchError(
            f"the plan cuts {len(plan.block_entries)} blocks, the model has {len(graph.chain)}: it "
            f"was made for another model (plan {plan.model_hash}, model {traced.content_hash})"
        )
    degrees = plan.degrees
    if degrees.num_devices > cluster.num_devices:
        raise MismatchError(
            f"the plan needs {degrees.num_devices} devices (pp {degrees.pp} x dp {degrees.dp} x tp "
            f"{degrees.tp}), cluster {cluster.name} has {cluster.num_devices}"
        )
    for rank in range(plan.degrees.pp):
        device = cluster.device_at(plan.degrees.rank(pp=rank))
        try:
            device.peak_or_twins(plan.workload.compute_dtype)
        except InputError as error:
            raise InputError(f"{error} (--precision {plan.workload.precision})") from error


def _stage_blocks(plan: Plan, stage: int, graph: ModelGraph, cluster: Cluster) -> list[BlockCost]:
    cut = plan.stages[stage]
    devices = plan.degrees.group("tp", pp=plan.pp_rank_of(stage))
    refs = graph.chain[cut.first_block : cut.last_block]
    return [
        price_block(graph.kinds[ref.kind], recompute=kind, devices=devices, cluster=cluster)
        for ref, kind in zip(refs, cut.recompute, strict=True)
    ]


def _sends(plan: Plan, graph: ModelGraph, cluster: Cluster) -> list[CommCost | None]:
    """Cost of crossing the cut before each stage; None where both sides are one rank."""
    found: list[CommCost | None] = [None]
    for stage in range(1, len(plan.stages)):
        source, target = plan.pp_rank_of(stage - 1), plan.pp_rank_of(stage)
        if source == target:
            found.append(None)
            continue
        devices = (plan.degrees.rank(pp=source), plan.degrees.rank(pp=target))
        size = crossing_bytes(graph, plan.stages[stage].first_block)
        found.append(price_collective("send", size, devices, cluster, sharing=plan.degrees.tp))
    return found


def _durations(costs: list[StageCost], sends: list[CommCost | None], end: str) -> Durations:
    name = {"value": "time_s", "low": "low_s", "high": "high_s"}[end]
    crossing = tuple(0.0 if s is None else float(getattr(s, name)) for s in sends)
    forward = tuple(float(getattr(c.forward, end)) * c.slowest for c in costs)
    backward = tuple(float(getattr(c.backward, end)) * c.slowest for c in costs)
    shares = [c.weight_s / c.backward.value if c.backward.value else 0.0 for c in costs]
    return Durations(
        forward_s=forward,
        backward_s=backward,
        backward_input_s=tuple(b * (1 - w) for b, w in zip(backward, shares, strict=True)),
        backward_weight_s=tuple(b * w for b, w in zip(backward, shares, strict=True)),
        send_forward_s=crossing,
        send_backward_s=crossing,
    )


def _step(plan: Plan, timeline: Timeline, tails: list[float]) -> tuple[float, int]:
    ends = [timeline.rank_end_s(rank) + tails[rank] for rank in range(plan.degrees.pp)]
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
    low_tails = [t.exchange.low + t.optimizer.low for t in tails]
    high_tails = [t.exchange.high + t.optimizer.high for t in tails]
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
    work = micro * sum(c.forward.value + c.backward.value for c in mine)
    busy = micro * sum((c.forward.value + c.backward.value) * c.slowest for c in mine)
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
        "compute": work - recompute - launch - runtime - tp - gather,
        "recompute": recompute,
        "launch": launch,
        "runtime": runtime,
        "waiting_for_slowest_rank": busy - work,
        "tensor_parallel_communication": tp,
        "pipeline_communication": idle - bubble,
        "data_parallel_communication": tail.data_parallel_s + gather,
        "bubble": bubble,
        "optimizer": tail.optimizer_s,
    }
    components = tuple(Component(name=name, time_s=value) for name, value in parts.items())
    total = sum(parts.values())
    return components, bubble / total if total else 0.0


def _mfu(plan: Plan, traced: Traced, cluster: Cluster, step: Interval) -> Interval:
    flop = graph_model_flop(traced.at(plan.micro_batch, 1))
    flop *= plan.num_microbatches * plan.degrees.dp
    dtype = plan.workload.compute_dtype
    peaks = (
        cluster.device_at(i).peak_or_twins(dtype).value for i in range(plan.degrees.num_devices)
    )
    return mfu(flop, step, sum(peaks))


def _stage_predictions(
    plan: Plan, graph: ModelGraph, costs: list[StageCost], tails: list[Tail]
) -> tuple[StagePrediction, ...]:
    return tuple(
        StagePrediction(
            stage=s,
            rank=plan.degrees.rank(pp=plan.pp_rank_of(s)),
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


SHARED_SUMS = "sums of shared weights' gradients"
"""What `data_parallel_communication` is where there are no replicas: stages share weights."""


def _limit(
    plan: Plan,
    components: tuple[Component, ...],
    ranks: tuple[RankMemory, ...],
    critical: int,
) -> str:
    tight = max(ranks, key=lambda rank: rank.use)
    use = tight.use
    if use > 1:
        return f"memory of rank {tight.rank}: {use:.0%} of what the device has"
    largest = max(components, key=lambda part: part.time_s)
    total = sum(part.time_s for part in components)
    name = largest.name.replace("_", " ")
    if plan.degrees.dp == 1 and largest.name == "data_parallel_communication":
        name = SHARED_SUMS
    return (
        f"{name} of pipeline rank {critical} ({largest.time_s / total:.0%} of the step); memory of "
        f"rank {tight.rank} is {use:.0%} full"
    )


def plan_hash(plan: Plan) -> str:
    """What a measurement names its plan by."""
    return content_hash(plan)
