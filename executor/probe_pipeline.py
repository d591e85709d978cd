"""Blocks of a model measured as they run: in short runs of the executor.

Sums of isolated ops are 4-9 % too low on a CPU; whole blocks predict a stage within 1-5 %: in
place, the caches are as the block before left them, and code between the ops is included.

One process per device trains the model under 1F1B, with the executor's replay, torch's pipeline
runtime, messages, gradient accumulation and optimizer steps, and every block is timed where it
runs. So a block's time holds its share of what training costs around it. A few steps under ZB-H1
give the share of the weight gradients in each block's backward. On an accelerator, on one device,
and for models with fewer blocks than devices, every device trains the whole model instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from executor.pipeline_times import (
    RankLog,
    StepLog,
    any_undisturbed,
    block_points,
    step_overhead,
    weight_shares,
    whole_points,
)
from profiles.document import decode, encode
from profiles.errors import InputError, ModelError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import BlockPoint, ReferencePoint, StepOverhead
from profiles.hardware.probe.fingerprint import available_memory_bytes
from profiles.hardware.probe.measured_blocks import with_blocks
from profiles.hardware.probe.probe_reference import combined_references, time_references
from profiles.hardware.probe.probe_workers import Progress, no_progress, run_workers
from profiles.model.graph import ModelGraph
from profiles.model.loaders import ModelSpec
from profiles.model.tracing.traced import TracedModel
from profiles.units import format_bytes
from simulator.traced.block_cost import price_block
from simulator.values.degrees import Degrees
from simulator.values.plan import Plan, Recompute, Stage
from simulator.values.workload import Workload

# The first steps make gradients, optimizer states and connections; they are not counted.
WARM_UP_STEPS = 2
# A pipeline without one undisturbed step is measured anew.
_ATTEMPTS = 3
# AdamW: in fp32 a weight, its gradient and two moments; in 16 bits the weight's copy in fp32 too.
_BYTES_PER_WEIGHT = 16.0
# Interpreter, torch and transformers of one process (measured: 0.23 GiB with torch alone).
_PROCESS_BYTES = 0.5 * 2**30
logger = logging.getLogger(__name__)

_PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimes:
    """Blocks as a pipeline ran them, and how fast the machine was before and after (mean)."""

    blocks: tuple[BlockPoint, ...]
    references: tuple[ReferencePoint, ...]


def profile_model(
    spec: ModelSpec,
    traced: TracedModel,
    cluster: Cluster,
    micro_batch: int,
    *,
    threads_per_device: int = 1,
    num_steps: int = 12,
    progress: Progress = no_progress,
) -> Cluster:
    """The cluster with the model's blocks measured on it: in a pipeline where that can be, else in
    the whole model on every device.

    traced  for this machine's kind of device. Raises the errors of both ways of measuring.
    """
    if can_measure_in_pipeline(traced, cluster):
        found = measure_in_pipeline(
            spec,
            traced,
            cluster,
            micro_batch,
            threads_per_device=threads_per_device,
            num_steps=num_steps,
            progress=progress,
        )
        return with_blocks(cluster, found.blocks, references=found.references)
    points = measure_in_whole(
        spec,
        traced,
        cluster,
        micro_batch,
        threads_per_device=threads_per_device,
        num_steps=num_steps,
        progress=progress,
    )
    return with_blocks(cluster, points)


def measure_overheads(
    spec: ModelSpec,
    traced: TracedModel,
    cluster: Cluster,
    *,
    threads_per_device: int = 1,
    progress: Progress = no_progress,
) -> Cluster:
    """The cluster with what the runtime takes around the actions of a pipeline and what steps
    without one take beside their blocks, as it was with this (small) model; unchanged where no
    pipeline of it can be measured here."""
    if not can_measure_in_pipeline(traced, cluster):
        return cluster
    found = measure_in_pipeline(
        spec,
        traced,
        cluster,
        1,
        threads_per_device=threads_per_device,
        progress=progress,
    )
    action = next((point.action for point in found.blocks if point.action is not None), None)
    if action is None:
        return cluster
    step = measure_steps(
        spec, traced, cluster, threads_per_device=threads_per_device, progress=progress
    )
    return with_blocks(cluster, (), action=action, step=step)


def measure_steps(
    spec: ModelSpec,
    traced: TracedModel,
    cluster: Cluster,
    *,
    threads_per_device: int = 1,
    num_steps: int = 40,
    progress: Progress = no_progress,
) -> StepOverhead:
    """What steps without a pipeline take beside the model's blocks: every device a replica, two
    micro-batches of one sample each per step. Raises what `measure_in_pipeline` raises."""
    alone = whole_plan(spec, traced, cluster, 1)
    (logs,), _ = _timed(
        spec, {alone: num_steps}, threads_per_device=threads_per_device, progress=progress
    )
    return step_overhead(alone, logs)


def measure_in_pipeline(
    spec: ModelSpec,
    traced: TracedModel,
    cluster: Cluster,
    micro_batch: int,
    *,
    threads_per_device: int = 1,
    num_steps: int = 12,
    progress: Progress = no_progress,
) -> PipelineTimes:
    """One point per distinct block at a micro-batch size, from a pipeline over all devices.

    cluster    this machine: so many processes as it has devices, and stages of equal time by its
               measured rates
    num_steps  counted optimizer steps, of two micro-batches per device each; a third as many more
               under ZB-H1, for the part of each backward that is the gradients of weights

    Times are means over the middle half of the undisturbed steps (`quiet_steps`). Raises InputError
    where the machine has one device or the model fewer blocks than devices (`measure_in_whole`
    measures those), RunError where a process fails.
    """
    if num_steps < 1:
        raise InputError(f"measuring a pipeline needs at least one step, got {num_steps}")
    plan = pipeline_plan(spec, traced, cluster, micro_batch)
    (whole, halves), references = _timed(
        spec,
        {plan: num_steps, replace(plan, schedule="zb-h1"): max(2, num_steps // 3)},
        threads_per_device=threads_per_device,
        progress=progress,
    )
    graph = traced.at(micro_batch, 1)
    shares = weight_shares(graph, halves)
    points = [
        replace(point, weight_share=shares[point.kind])
        for point in block_points(plan, graph, whole)
    ]
    return PipelineTimes(
        blocks=tuple(sorted(points, key=lambda point: point.kind)),
        references=references,
    )


def measure_in_whole(
    spec: ModelSpec,
    traced: TracedModel,
    cluster: Cluster,
    micro_batch: int,
    *,
    threads_per_device: int = 1,
    num_steps: int = 12,
    progress: Progress = no_progress,
) -> tuple[BlockPoint, ...]:
    """One point per distinct block at a micro-batch size, from steps in which every device trains
    the whole model at the same time, so that the shared memory is as busy as in training.

    num_steps  counted optimizer steps, of two micro-batches per device each

    Times are CPU seconds if a device is one thread, otherwise wall time. Raises ModelError if the
    model does not fit into memory once per device, RunError if a process fails.
    """
    if num_steps < 1:
        raise InputError(f"measuring blocks needs at least one step, got {num_steps}")
    graph = traced.at(micro_batch, 1)
    _check_memory(graph, cluster)
    plan = whole_plan(spec, traced, cluster, micro_batch)
    (logs,), _ = _timed(
        spec, {plan: num_steps}, threads_per_device=threads_per_device, progress=progress
    )
    wall = threads_per_device > 1 or cluster.device_at(0).type != "cpu"
    return whole_points(graph, logs, wall=wall)


def training_bytes(graph: ModelGraph) -> float:
    """Bytes that one process needs to train the whole model: weights with gradients and states of
    the optimizer (tied ones once), the saved tensors, and the largest working set of a block."""
    blocks = graph.blocks
    weights = sum(block.parameter_count for block in blocks)
    saved = sum(block.saved_bytes for block in blocks)
    working = max(max(b.forward_peak_bytes, b.backward_peak_bytes) for b in blocks)
    return _BYTES_PER_WEIGHT * weights + saved + working


def _check_memory(graph: ModelGraph, cluster: Cluster) -> None:
    """Raises ModelError if the processes need more memory than is available."""
    count, device = cluster.num_devices, cluster.device_at(0)
    each = training_bytes(graph) + _PROCESS_BYTES
    available = available_memory_bytes() if device.type == "cpu" else count * device.usable_bytes
    if count * each > available:
        raise ModelError(
            f"measuring the blocks of {graph.name} at micro-batch {graph.micro_batch} needs "
            f"{format_bytes(count * each)} ({count} processes of {format_bytes(each)}), this "
            f"machine has {format_bytes(available)} available; measure a smaller micro-batch, "
            "fewer processes, or the same model with fewer layers (equal blocks have equal times)"
        )


def _timed(
    spec: ModelSpec,
    plans: Mapping[Plan, int],
    *,
    threads_per_device: int,
    progress: Progress,
) -> tuple[list[list[RankLog]], tuple[ReferencePoint, ...]]:
    """The logs of all ranks for each plan of so many counted steps, and the machine's speed before
    and after; measured anew while no step of the first plan is undisturbed."""
    job = {
        "spec": encode(spec),
        "plans": [encode(plan) for plan in plans],
        "num_steps": list(plans.values()),
    }
    for _ in range(_ATTEMPTS):
        answers = run_workers(
            "executor.probe_pipeline:run_pipelines",
            job,
            num_processes=next(iter(plans)).degrees.num_devices,
            threads_per_process=threads_per_device,
            progress=progress,
        )
        logs = [
            [decode(RankLog, answer["logs"][index], where="rank") for answer in answers]
            for index in range(len(plans))
        ]
        if any_undisturbed(logs[0]):
            break
    else:
        logger.warning(
            "%s: every measured step waited for cores that other programs had, in %d attempts; "
            "its times are too long. Measure again when the machine is quiet.",
            spec.name,
            _ATTEMPTS,
        )
    return logs, combined_references([_references(answer) for answer in answers])


def _references(answer: Mapping[str, Any]) -> tuple[ReferencePoint, ...]:
    """The mean of a worker's reference kernels before and after."""
    ends = [
        decode(tuple[ReferencePoint, ...], answer[name], where=name) for name in ("before", "after")
    ]
    return combined_references(ends)


def can_measure_in_pipeline(traced: TracedModel, cluster: Cluster) -> bool:
    """Whether this machine has devices enough for a pipeline, and the model blocks enough.

    Only on a CPU: on an accelerator the stamps wait for the kernels, which would delay messages.
    """
    count = cluster.num_devices
    cpu = all(group.device.type == "cpu" for group in cluster.groups)
    return cpu and 1 < count <= len(traced.at(1, 1).chain)


def pipeline_plan(spec: ModelSpec, traced: TracedModel, cluster: Cluster, micro_batch: int) -> Plan:
    """1F1B over all devices in stages of about equal time, two micro-batches per device."""
    graph = traced.at(micro_batch, 1)
    count = cluster.num_devices
    if not 1 < count <= len(graph.chain):
        raise InputError(
            f"a pipeline of {count} devices needs two devices and as many blocks at least, "
            f"{graph.name} has {len(graph.chain)} blocks"
        )
    stages = even_stages(_block_seconds(graph, cluster), count)
    return _plan(
        spec, traced, cluster, micro_batch, degrees=Degrees(pp=count), schedule="1f1b", cuts=stages
    )


def whole_plan(spec: ModelSpec, traced: TracedModel, cluster: Cluster, micro_batch: int) -> Plan:
    """Every device a replica of the whole model, two micro-batches per device."""
    count = len(traced.at(micro_batch, 1).chain)
    whole = Stage(first_block=0, last_block=count, recompute=(Recompute.NONE,) * count)
    degrees = Degrees(dp=cluster.num_devices)
    return _plan(
        spec, traced, cluster, micro_batch, degrees=degrees, schedule="none", cuts=(whole,)
    )


def _plan(
    spec: ModelSpec,
    traced: TracedModel,
    cluster: Cluster,
    micro_batch: int,
    *,
    degrees: Degrees,
    schedule: str,
    cuts: tuple[Stage, ...],
) -> Plan:
    graph = traced.at(micro_batch, 1)
    return Plan(
        model=spec.source,
        model_hash=spec.content_hash,
        block_entries=tuple(ref.entry for ref in graph.chain),
        tied_parameters=traced.tied_parameters,
        cluster=cluster.name,
        cluster_hash="",
        workload=Workload(
            global_batch=2 * cluster.num_devices * micro_batch,
            sequence_length=graph.sequence_length,
            precision=_PRECISIONS[graph.dtype],
        ),
        degrees=degrees,
        micro_batch=micro_batch,
        schedule=schedule,
        stages=cuts,
    )


def even_stages(times_s: Sequence[float], count: int) -> tuple[Stage, ...]:
    """Blocks cut into `count` stages of about equal time, one block each at least."""
    cuts, done = [0], 0.0
    for index, time_s in enumerate(times_s):
        due = done + time_s / 2 >= sum(times_s) * len(cuts) / count
        needed = count - len(cuts) >= len(times_s) - index
        if len(cuts) < count and index > cuts[-1] and (due or needed):
            cuts.append(index)
        done += time_s
    cuts.append(len(times_s))
    return tuple(
        Stage(first_block=a, last_block=b, recompute=(Recompute.NONE,) * (b - a))
        for a, b in pairwise(cuts)
    )


def _block_seconds(graph: ModelGraph, cluster: Cluster) -> list[float]:
    """By the ops' prices: blocks measured earlier, by whatever way, would make the cuts wander."""
    groups = tuple(replace(g, device=_without_blocks(g.device)) for g in cluster.groups)
    plain = replace(cluster, groups=groups)
    costs = [
        price_block(kind, recompute=Recompute.NONE, devices=(0,), cluster=plain)
        for kind in graph.kinds
    ]
    return [costs[r.kind].forward.value + costs[r.kind].backward.value for r in graph.chain]


def _without_blocks(device: Any) -> Any:
    if device.measurements is None:
        return device
    return replace(device, measurements=replace(device.measurements, blocks=()))


def run_pipelines(job: Mapping[str, Any], reporter: Callable[..., None]) -> dict[str, Any]:
    """The job of one worker: the log of this rank for each plan."""
    import torch.distributed as dist

    spec: ModelSpec = decode(ModelSpec, job["spec"], where="model")
    plans: list[Plan] = [decode(Plan, plan, where="plan") for plan in job["plans"]]
    counts = [int(count) for count in job["num_steps"]]
    before_each = [sum(counts[:index]) + index * WARM_UP_STEPS for index in range(len(counts) + 1)]
    logs = []
    before = time_references(barrier=dist.barrier)
    for index, plan in enumerate(plans):
        label = f"{spec.name}, micro-batch {plan.micro_batch}"

        def report(done: int, label: str = label, first: int = before_each[index]) -> None:
            reporter(first + done, before_each[-1], label)

        logs.append(encode(_run_pipeline(plan, spec, counts[index], report)))
        dist.barrier()
    after = time_references(barrier=dist.barrier)
    return {"logs": logs, "before": encode(before), "after": encode(after)}


def _run_pipeline(
    plan: Plan, spec: ModelSpec, num_steps: int, report: Callable[[int], None]
) -> RankLog:
    import torch

    from executor.mesh import make_mesh
    from executor.rank import Rank
    from executor.recorder import BlockRecorder
    from executor.train import train_step
    from profiles.hardware.probe.cpu_clock import delay_fraction

    recorder = BlockRecorder()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
    rank = Rank(plan, spec, make_mesh(plan, device.type), device, recorder)
    recorder.watch(rank.stages, plan.block_entries)
    for number in range(WARM_UP_STEPS + num_steps):
        report(number)
        train_step(rank, recorder)
    steps = []
    for number, step in enumerate(recorder.steps):
        assert step.sample is not None
        begin_s = recorder.begins_ns[number] * 1e-9
        steps.append(
            StepLog(
                begin_s=begin_s,
                wall_s=step.sample.wall_s,
                delay_fraction=delay_fraction(step.sample),
                actions=tuple(step.actions),
            )
        )
    blocks = tuple(
        (b.step, b.block, b.letter, b.sample.wall_s, b.sample.cpu_s) for b in recorder.blocks
    )
    return RankLog(
        steps=tuple(steps),
        blocks=blocks,
        stamping=tuple(recorder.stamping),
        warm_up=WARM_UP_STEPS,
    )
