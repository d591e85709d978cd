"""Measure the blocks of a model in short runs of the executor.

On a CPU, sums of isolated ops are 4-9 % too low, while whole blocks predict a stage within 1-5 %:
caches are in the state that the previous block left, and code between the ops is included.

One process per device trains the model under 1F1B, with the executor's replay, torch's pipeline
runtime, messages, gradient accumulation and optimizer steps, and each block is timed there. Its
time therefore includes its share of the overheads of training. A few steps under ZB-H1 measure the
share of weight gradients in each block's backward. On an accelerator, on one device, and for models
with fewer blocks than devices, every device trains the whole model instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from executor.pipeline_times import (
    RankLog,
    block_points,
    has_quiet_step,
    step_overhead,
    weight_shares,
    whole_points,
)
from profiles.document import decode, encode
from profiles.errors import InputError, ModelError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import BlockPoint, ReferencePoint
from profiles.hardware.probe.fingerprint import available_memory_bytes
from profiles.hardware.probe.measured_blocks import with_blocks
from profiles.hardware.probe.probe_reference import KERNELS, combined_references, time_references
from profiles.hardware.probe.probe_workers import Progress, no_progress, run_workers
from profiles.model.graph import ModelGraph
from profiles.model.loaders import ModelSpec
from profiles.model.tracing.traced import TracedModel
from profiles.units import format_bytes
from simulator.traced.block_cost import price_block
from simulator.traced.predict import predict
from simulator.values.degrees import Degrees
from simulator.values.plan import Plan, Recompute, Stage
from simulator.values.workload import Workload

# The first steps create gradients, optimizer states and connections; they are not counted.
WARM_UP_STEPS = 2
# The first plan is repeated as long as every step of it is disturbed.
_ATTEMPTS = 3
# Memory of interpreter, torch and transformers of one process (measured: 0.23 GiB with torch
# alone).
_PROCESS_BYTES = 0.5 * 2**30
logger = logging.getLogger(__name__)

_PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimes:
    """Block times in a pipeline, and the mean machine speed before and after."""

    blocks: tuple[BlockPoint, ...]
    references: tuple[ReferencePoint, ...]


@dataclass(frozen=True, slots=True)
class BlockProbe:
    """Measures the blocks of a model on this machine, with one process per device of the cluster.

    traced  the model, traced for this machine's type of device

    `num_steps` is the number of counted optimizer steps, with two micro-batches per device each.
    The methods raise InputError for no steps and RunError if a process fails.
    """

    spec: ModelSpec
    traced: TracedModel
    cluster: Cluster
    threads_per_device: int = 1
    progress: Progress = no_progress

    @property
    def has_pipeline(self) -> bool:
        """Whether the machine has enough devices, and the model enough blocks, for a pipeline.

        Only on a CPU: on an accelerator, timestamps wait for the kernels, and this would delay
        messages.
        """
        cpu = all(group.device.type == "cpu" for group in self.cluster.groups)
        return cpu and 1 < self.cluster.num_devices <= len(self.traced.at(1, 1).chain)

    def profiled(self, micro_batch: int, num_steps: int = 12) -> Cluster:
        """The cluster with measured blocks: in a pipeline if possible, otherwise in the whole model
        on every device. Raises the errors of both measurements."""
        if self.has_pipeline:
            found = self.in_pipeline(micro_batch, num_steps)
            return with_blocks(self.cluster, found.blocks, references=found.references)
        return with_blocks(self.cluster, self.in_whole(micro_batch, num_steps))

    def with_overheads(self) -> Cluster:
        """The cluster with the overheads measured with this (small) model: of the runtime around
        the actions of a pipeline, and of steps without a pipeline outside of blocks. Unchanged if
        no pipeline of the model can be measured here."""
        if not self.has_pipeline:
            return self.cluster
        points = self.in_pipeline(1).blocks
        action = next((point.action for point in points if point.action is not None), None)
        if action is None:
            return self.cluster
        # Without a pipeline: every device is a replica, with two micro-batches of one sample per
        # step.
        alone = self._whole_plan(1)
        (logs,), _ = self._timed({alone: 40})
        return with_blocks(self.cluster, (), action=action, step=step_overhead(alone, logs))

    def in_pipeline(self, micro_batch: int, num_steps: int = 12) -> PipelineTimes:
        """One point per distinct block at a micro-batch size, from a pipeline over all devices, in
        stages of equal time by the measured rates of the cluster.

        After the counted steps, a third as many run under ZB-H1, for the share of weight gradients
        in each backward. Times are means over `quiet_steps`. Raises InputError if the machine has
        one device or the model fewer blocks than devices (use `in_whole`).
        """
        plan = self.pipeline_plan(micro_batch)
        halved = replace(plan, schedule="zb-h1")
        steps = {plan: num_steps, halved: max(2, num_steps // 3)}
        (whole, halves), references = self._timed(steps, references=True)
        graph = self.traced.at(micro_batch, 1)
        shares = weight_shares(graph, halves)
        points = [
            replace(point, weight_share=shares[point.kind])
            for point in block_points(plan, graph, whole)
        ]
        return PipelineTimes(
            blocks=tuple(sorted(points, key=lambda point: point.kind)), references=references
        )

    def in_whole(self, micro_batch: int, num_steps: int = 12) -> tuple[BlockPoint, ...]:
        """One point per distinct block at a micro-batch size, from steps in which all devices train
        the whole model at the same time, so that the shared memory is as busy as in training.

        Times are CPU seconds if a device is one thread, otherwise wall time. Raises ModelError if
        the model does not fit in memory once per device.
        """
        graph = self.traced.at(micro_batch, 1)
        plan = self._whole_plan(micro_batch)
        self._check_memory(graph, plan)
        (logs,), _ = self._timed({plan: num_steps})
        wall = self.threads_per_device > 1 or self.cluster.device_at(0).type != "cpu"
        return whole_points(graph, logs, wall=wall)

    def _check_memory(self, graph: ModelGraph, plan: Plan) -> None:
        """Raises ModelError if the processes need more memory than is available."""
        count, device = self.cluster.num_devices, self.cluster.device_at(0)
        (rank,) = predict(plan, self.traced, self.cluster).ranks
        each = rank.peak_bytes + _PROCESS_BYTES
        available = (
            available_memory_bytes() if device.type == "cpu" else count * device.usable_bytes
        )
        if count * each > available:
            raise ModelError(
                f"measuring the blocks of {graph.name} at micro-batch {graph.micro_batch} needs "
                f"{format_bytes(count * each)} ({count} processes of {format_bytes(each)}), this "
                f"machine has {format_bytes(available)} available; measure a smaller micro-batch, "
                "fewer processes, or the same model with fewer layers (equal blocks have equal "
                "times)"
            )

    def _timed(
        self, plans: Mapping[Plan, int], *, references: bool = False
    ) -> tuple[list[list[RankLog]], tuple[ReferencePoint, ...]]:
        """The logs of all ranks for each plan, and with `references` the machine's speed before and
        after."""
        if min(plans.values()) < 1:
            raise InputError(f"measuring blocks needs at least one step, got {min(plans.values())}")
        job = {
            "spec": encode(self.spec),
            "plans": [encode(plan) for plan in plans],
            "num_steps": list(plans.values()),
            "references": references,
        }
        answers = run_workers(
            "executor.probe_pipeline:run_pipelines",
            job,
            num_processes=self.cluster.num_devices,
            threads_per_process=self.threads_per_device,
            progress=self.progress,
        )
        logs = [
            [decode(RankLog, answer["logs"][index], where="rank") for answer in answers]
            for index in range(len(plans))
        ]
        if not has_quiet_step(logs[0]):
            logger.warning(
                "%s: every measured step waited for cores that other programs had, in %d attempts; "
                "its times are too long. Measure again when the machine is quiet.",
                self.spec.name,
                _ATTEMPTS,
            )
        points = tuple[ReferencePoint, ...]
        speeds = [decode(points, a["references"], where="references") for a in answers]
        return logs, combined_references(speeds)

    def pipeline_plan(self, micro_batch: int) -> Plan:
        """1F1B over all devices in stages of about equal time, two micro-batches per device."""
        graph, count = self.traced.at(micro_batch, 1), self.cluster.num_devices
        if not 1 < count <= len(graph.chain):
            raise InputError(
                "a pipeline needs two or more devices and at least as many blocks; got "
                f"{count} devices, and {graph.name} has {len(graph.chain)} blocks"
            )
        stages = even_stages(self._block_seconds(graph), count)
        return self._plan(graph, Degrees(pp=count), "1f1b", stages)

    def _whole_plan(self, micro_batch: int) -> Plan:
        """A plan in which every device is a replica of the whole model, with two micro-batches
        each."""
        graph = self.traced.at(micro_batch, 1)
        stages = even_stages([1.0] * len(graph.chain), 1)
        return self._plan(graph, Degrees(dp=self.cluster.num_devices), "none", stages)

    def _plan(
        self, graph: ModelGraph, degrees: Degrees, schedule: str, stages: tuple[Stage, ...]
    ) -> Plan:
        return Plan(
            model=self.spec.source,
            model_hash=self.spec.content_hash,
            block_entries=tuple(ref.entry for ref in graph.chain),
            tied_parameters=self.traced.tied_parameters,
            cluster=self.cluster.name,
            cluster_hash="",
            workload=Workload(
                global_batch=2 * self.cluster.num_devices * graph.micro_batch,
                sequence_length=graph.sequence_length,
                precision=_PRECISIONS[graph.dtype],
            ),
            degrees=degrees,
            micro_batch=graph.micro_batch,
            schedule=schedule,
            stages=stages,
        )

    def _block_seconds(self, graph: ModelGraph) -> list[float]:
        """Block times from the ops' prices. Measured block times of an earlier profile are ignored,
        because the cuts would then change from profile to profile."""
        costs = [
            price_block(
                replace(kind, kind=""),
                recompute=Recompute.NONE,
                devices=(0,),
                cluster=self.cluster,
            )
            for kind in graph.kinds
        ]
        return [costs[r.kind].forward.value + costs[r.kind].backward.value for r in graph.chain]


def even_stages(times_s: Sequence[float], count: int) -> tuple[Stage, ...]:
    """Blocks cut into `count` stages of about equal time, with at least one block each."""
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


def run_pipelines(job: Mapping[str, Any], reporter: Callable[..., None]) -> dict[str, Any]:
    """The job of one worker: the log of this rank for each plan."""
    import torch
    import torch.distributed as dist

    from executor.mesh import gather_all, make_mesh
    from executor.rank import Rank
    from executor.recorder import BlockRecorder
    from executor.train import train_step

    spec: ModelSpec = decode(ModelSpec, job["spec"], where="model")
    plans: list[Plan] = [decode(Plan, plan, where="plan") for plan in job["plans"]]
    counts = [WARM_UP_STEPS + int(count) for count in job["num_steps"]]
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
    logs = []
    kernels = KERNELS if job["references"] else ()
    before = time_references(barrier=dist.barrier, kernels=kernels)
    for index, plan in enumerate(plans):
        for _ in range(1 if index else _ATTEMPTS):
            recorder = BlockRecorder()
            with Rank(plan, spec, make_mesh(plan, device.type), device, recorder) as rank:
                recorder.watch(rank.stages, plan.block_entries)
                for number in range(counts[index]):
                    done = sum(counts[:index]) + number
                    reporter(done, sum(counts), f"{spec.name}, micro-batch {plan.micro_batch}")
                    train_step(rank, recorder)
            log = RankLog(
                # JSON has no number for a non-finite loss.
                steps=tuple(replace(step, loss=None) for step in recorder.steps),
                blocks=tuple(recorder.blocks),
                stamping=tuple(recorder.stamping),
                warm_up=WARM_UP_STEPS,
            )
            if has_quiet_step(gather_all(log)):
                break
        logs.append(encode(log))
        dist.barrier()
    after = time_references(barrier=dist.barrier, kernels=kernels)
    return {"logs": logs, "references": encode(combined_references([before, after]))}
