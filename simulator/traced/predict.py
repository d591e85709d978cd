"""Predict a plan block by block: its step time, memory, money and energy, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from profiles.errors import InputError, MismatchError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import ReferencePoint
from profiles.model.graph import ModelGraph
from profiles.model.tracing.block_order import crossing, in_order
from profiles.sourced import Sourced
from simulator.memory.blocks import plan_memory
from simulator.memory.data_group import data_group
from simulator.mfu import graph_model_flop
from simulator.step_prediction import (
    StepFacts,
    limit_words,
    source_tags,
    step_prediction,
    with_energy,
    with_price,
)
from simulator.traced.priced_replica import PricedReplica, price_replica, step_of
from simulator.traced.step_tail import Tail, tail_of
from simulator.training_run.framework.executor_states import ExecutorStates
from simulator.training_run.framework.framework import load_stack
from simulator.values.plan import Plan
from simulator.values.prediction import (
    Component,
    CutTensor,
    Interval,
    Part,
    Prediction,
    SourceTag,
    StagePrediction,
)
from simulator.values.timeline_events import timeline_events

# Half-width of the 90 % interval of the peak: a caching allocator's rounding and cache are not
# modelled (torch's CUDACachingAllocator rounds to 512 B and splits blocks; assumed).
_MEMORY_WIDTH = 0.05


class TracedGraphs(Protocol):
    """The part of a traced model that `predict` uses (profiles.model.tracing.traced)."""

    content_hash: str

    def at(self, micro_batch: int, tp: int = 1) -> ModelGraph:
        """The graph of a micro-batch on one of `tp` ranks."""


def predict(
    plan: Plan,
    traced: TracedGraphs,
    cluster: Cluster,
    *,
    stack: ExecutorStates | None = None,
    price: Sourced | None = None,
) -> Prediction:
    """The prediction of the plan on the cluster.

    price  US dollars per device-hour, or None

    The step time is that of the slowest rank: its actions in the timeline and its tail (gradient
    exchange, optimizer). If replicas differ, the exchange waits for the last of those with the same
    blocks (priced_replica.py). The components are that rank's time and add up to the step: work,
    the excess over the mean of ranks with the same work (slowest_rank.py), communication inside
    blocks, idle time in the pipeline (bubble: the idle time without send times; pipeline
    communication: the rest), and the tail. The ends of the interval are the step with every stage,
    message and tail at its own end; kernel_errors.py combines the errors of a stage's kernels.

    Raises MismatchError for a plan that does not cover the model or needs more devices than there
    are, InputError if a device has no rate for the precision.
    """
    stack = stack or load_stack()
    graph = traced.at(plan.micro_batch, plan.degrees.tp)
    _check(plan, traced, graph, cluster)
    if graph.branches:
        graph = in_order(graph, plan.block_entries)
    replicas = [price_replica(each, graph, cluster, stack) for each in plan.replicas]
    parts: list[Tail] = []
    if plan.pipelines is not None:
        whole = plan.parts
        parts = [
            tail_of(whole, part, graph, data_group(whole, part, cluster, stack))
            for part in range(whole.degrees.pp)
        ]
    slowest = step_of(replicas, parts, "value")
    step, critical = slowest.step_s, replicas[slowest.replica]
    interval = Interval(
        value=step,
        low=min(step, step_of(replicas, parts, "low").step_s),
        high=max(step, step_of(replicas, parts, "high").step_s),
    )
    components = _components(
        critical, slowest.rank, slowest.exchange_s[slowest.replica][slowest.rank]
    )
    ranks = tuple(
        rank
        for each in replicas
        for rank in plan_memory(
            each.plan, graph, each.blocks, each.timelines["value"], cluster, stack
        )
    )
    work = plan.workload
    peaks = (cluster.device_at(i).peak_or_twins(work.compute_dtype).value for i in plan.devices)
    flop = graph_model_flop(traced.at(plan.micro_batch, 1))
    peak = max(rank.peak_bytes for rank in ranks)
    made = step_prediction(
        StepFacts(
            step=interval,
            parts=components,
            model_flop=flop * (work.global_batch // plan.micro_batch),
            peak_flop_per_s=sum(peaks),
            counted=work.counted_per_step,
            counted_in=work.counted_in,
            ranks=ranks,
            peak=Interval(
                value=peak, low=peak * (1 - _MEMORY_WIDTH), high=peak * (1 + _MEMORY_WIDTH)
            ),
            fits=all(rank.fits for rank in ranks),
        )
    )
    # Idle devices of the cluster are paid for and powered.
    made = with_price(made, cluster.num_devices, price)
    made = with_energy(made, cluster, made.mfu.value * len(plan.devices) / cluster.num_devices)
    return replace(
        made,
        stages=tuple(
            stage
            for each, exchange_s in zip(replicas, slowest.exchange_s, strict=True)
            for stage in _stage_predictions(each, graph, exchange_s)
        ),
        events=tuple(
            event
            for each, exchange_s in zip(replicas, slowest.exchange_s, strict=True)
            for event in timeline_events(
                each.plan,
                each.timelines["value"],
                send_s=[0.0 if send is None else send.time_s for send in each.sends],
                exchange_s=exchange_s,
                optimizer_s=[tail.optimizer.value for tail in each.tails],
            )
        ),
        sources=_sources(replicas),
        limit=_limit(plan, made, critical.plan, slowest.rank),
        references=_references(plan, cluster),
    )


def _first_devices(plan: Plan) -> list[int]:
    """The first device of every pipeline rank, of every replica if they differ."""
    replicas = [each.degrees for each in plan.replicas]
    return [degrees.rank(pp=rank) for degrees in replicas for rank in range(degrees.pp)]


def _references(plan: Plan, cluster: Cluster) -> tuple[ReferencePoint, ...]:
    """The profile's measurements with reference kernels; None for several types of devices."""
    devices = {cluster.device_at(index) for index in _first_devices(plan)}
    measured = devices.pop().measurements if len(devices) == 1 else None
    return measured.references if measured is not None else ()


def _check(plan: Plan, traced: TracedGraphs, graph: ModelGraph, cluster: Cluster) -> None:
    if len(graph.chain) != len(plan.block_entries):
        raise MismatchError(
            f"the plan cuts {len(plan.block_entries)} blocks, the model has {len(graph.chain)}: it "
            f"was made for another model (plan {plan.model_hash}, model {traced.content_hash})"
        )
    degrees = plan.degrees
    if len(plan.devices) > cluster.num_devices:
        raise MismatchError(
            f"the plan needs {len(plan.devices)} devices (pp {degrees.pp} x dp {degrees.dp} x tp "
            f"{degrees.tp}), cluster {cluster.name} has {cluster.num_devices}"
        )
    if plan.zero_stage == 3 and (why := graph.why_not_zero_3):
        raise InputError(f"zero_stage=3: {why}; plan with --zero 0,1,2")
    for index in _first_devices(plan):
        if plan.optimizer_offload and cluster.device_at(index).type == "cpu":
            raise InputError(
                f"optimizer_offload=true moves states to host memory, and {cluster.name} is "
                "a CPU, whose states are in host memory already; plan without --optimizer-offload"
            )
        try:
            cluster.device_at(index).peak_or_twins(plan.workload.compute_dtype)
        except InputError as error:
            raise InputError(f"{error} (--precision {plan.workload.precision})") from error


def _components(replica: PricedReplica, critical: int, exchange_s: float) -> tuple[Component, ...]:
    """The critical rank's time by cause."""
    micro = replica.plan.num_microbatches
    mine = [replica.costs[s] for s in replica.plan.stages_of(critical)]
    work = micro * sum(c.forward.value + c.backward.value for c in mine)
    busy = micro * sum((c.forward.value + c.backward.value) * c.slowest for c in mine)
    idle = max(0.0, replica.timelines["value"].rank_end_s(critical) - busy)
    free = replica.timelines["free"]
    bubble = min(idle, max(0.0, free.rank_end_s(critical) - busy))
    recompute = micro * sum(c.recompute_s for c in mine)
    launch = micro * sum(c.launch_s for c in mine)
    runtime = micro * sum(c.runtime_s for c in mine)
    tp = micro * sum(c.tp_s for c in mine)
    gather = micro * sum(c.gather_s for c in mine)
    parts = {
        Part.COMPUTE: work - recompute - launch - runtime - tp - gather,
        Part.RECOMPUTE: recompute,
        Part.LAUNCH: launch,
        Part.RUNTIME: runtime,
        Part.WAITING: busy - work,
        Part.TENSOR: tp,
        Part.CUT: idle - bubble,
        Part.REDUCE: exchange_s + gather,
        Part.BUBBLE: bubble,
        Part.OPTIMIZER: replica.tails[critical].optimizer.value,
    }
    return tuple(Component(name=name, time_s=value) for name, value in parts.items())


def _stage_predictions(
    replica: PricedReplica, graph: ModelGraph, exchange_s: Sequence[float]
) -> tuple[StagePrediction, ...]:
    plan, tails = replica.plan, replica.tails
    return tuple(
        StagePrediction(
            stage=s,
            rank=plan.degrees.rank(pp=plan.pp_rank_of(s)),
            forward_s=cost.forward.value,
            backward_s=cost.backward.value,
            optimizer_s=tails[plan.pp_rank_of(s)].optimizer.value,
            data_parallel_s=exchange_s[plan.pp_rank_of(s)],
            runtime_s=cost.runtime_s,
            receives=_receives(plan, s, graph),
        )
        for s, cost in enumerate(replica.costs)
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


def _sources(replicas: Sequence[PricedReplica]) -> tuple[SourceTag, ...]:
    """Methods and sources of the work and communication of all ranks, with their shares."""
    seconds: dict[tuple[str, str, str], float] = {}

    def add(name: str, method: str, source: str, time_s: float) -> None:
        key = (name, method, source)
        seconds[key] = seconds.get(key, 0.0) + time_s

    for replica in replicas:
        micro = replica.plan.num_microbatches
        for stage in replica.blocks:
            for block in stage:
                for name, method, source, time_s in block.methods:
                    add(name, method, source, micro * time_s)
                tp = block.tp_forward_s + block.tp_backward_s
                if tp:
                    add("tensor-parallel communication", "assumed", "link formulas", micro * tp)
        for send in replica.sends:
            if send is not None:
                add("pipeline sends", send.method, send.source, 2 * micro * send.time_s)
        for tail in replica.tails:
            update, exchange_s = tail.optimizer, tail.exchange.value
            add("optimizer", update.method, update.source, update.value)
            if exchange_s:
                links = "link tables and formulas"
                add("data-parallel communication", "assumed", links, exchange_s)
    return source_tags(seconds)


SHARED_SUMS = "sums of shared weights' gradients"
"""Name of `data_parallel_communication` without replicas: gradients of weights shared by stages."""


def _limit(plan: Plan, made: Prediction, replica: Plan, critical: int) -> str:
    tight = made.fullest
    if tight.use > 1:
        return f"memory of rank {tight.rank}: {tight.use:.0%} of what the device has"
    where = f" of pipeline rank {critical}"
    if plan.pipelines is not None:
        where = f" of device {replica.degrees.rank(pp=critical)}"
    return limit_words(made, where=where, exchange=SHARED_SUMS if plan.degrees.dp == 1 else "")
