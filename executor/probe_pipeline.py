"""Blocks of a model measured as they run: in a short pipeline of the executor's own.

One process per device trains the model under 1F1B, with the executor's replay, torch's pipeline
runtime, messages, gradient accumulation and optimizer steps, and every block is timed where it
runs. So a block's time holds its share of what training costs around it, which a block measured in
a plain loop (probe/probe_blocks.py) lacks. A few steps under ZB-H1 say how much of each
block's backward the gradients of its weights are.
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
)
from profiles.document import decode, encode
from profiles.errors import InputError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import BlockPoint, ReferencePoint, StepOverhead
from profiles.hardware.probe.probe_blocks import measure_graph, with_blocks
from profiles.hardware.probe.probe_reference import combined_references, time_references
from profiles.hardware.probe.probe_workers import Progress, no_progress, run_workers
from profiles.model.graph import ModelGraph
from profiles.model.loaders import ModelSpec
from profiles.model.tracing.traced import TracedModel
from simulator.traced.block_cost import price_block
from simulator.values.degrees import Degrees
from simulator.values.plan import Plan, Recompute, Stage
from simulator.values.workload import Workload

# The first steps make gradients, optimizer states and connections; they are not counted.
WARM_UP_STEPS = 2
# A pipeline without one undisturbed step is measured anew.
_ATTEMPTS = 3
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
    a plain loop (profiles/hardware/probe/probe_blocks.py).

    traced  for this machine's kind of device. Raises what the two ways of measuring raise.
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
    points = measure_graph(
        spec,
        traced.at(micro_batch, 1),
        num_processes=cluster.num_devices,
        threads_per_device=threads_per_device,
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
    plan = pipeline_plan(spec, traced, cluster, 1)
    whole = Stage(
        first_block=0,
        last_block=len(plan.block_entries),
        recompute=(Recompute.NONE,) * len(plan.block_entries),
    )
    degrees = Degrees(dp=cluster.num_devices)
    alone = replace(plan, degrees=degrees, schedule="none", stages=(whole,))
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
    where the machine has one device or the model fewer blocks than devices (measure_graph measures
    those), RunError where a process fails.
    """
    if num_steps < 1:
        raise InputError(f"a pipeline is measured for a step at least, asked for {num_steps}")
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

    Only on a CPU: on an accelerator the stamps would have to wait for the kernels.
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
    return Plan(
        model=spec.source,
        model_hash=spec.content_hash,
        block_entries=tuple(ref.entry for ref in graph.chain),
        tied_parameters=traced.tied_parameters,
        cluster=cluster.name,
        cluster_hash="",
        workload=Workload(
            global_batch=2 * count * micro_batch,
            sequence_length=graph.sequence_length,
            precision=_PRECISIONS[graph.dtype],
        ),
        degrees=Degrees(pp=count),
        micro_batch=micro_batch,
        schedule="1f1b",
        stages=even_stages(_block_seconds(graph, cluster), count),
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
    rank = Rank(plan, spec, make_mesh(plan, "cpu"), torch.device("cpu"), recorder)
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
