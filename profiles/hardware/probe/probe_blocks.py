"""Whole blocks of a model, measured in place on this machine: what makes a prediction close.

Sums of isolated ops are 4-9 % too low on a CPU, whole blocks predict a stage within 1-5 %
(DESIGN.md, section 4): in place a block finds the caches as the block before it left them, and
pays for what runs between the ops. Every process trains the whole model at the same time, so that
the shared memory is as busy as in training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from profiles.document import decode, encode
from profiles.errors import InputError, ModelError
from profiles.hardware.catalogue.device import BlockPoint
from profiles.hardware.probe.cpu_clock import Sample, Summary, summarise
from profiles.hardware.probe.fingerprint import available_memory_bytes
from profiles.hardware.probe.probe_chain import sample_chain
from profiles.hardware.probe.probe_workers import Progress, no_progress, run_workers
from profiles.model.building.build import build_model
from profiles.model.graph import Block, ModelGraph
from profiles.model.loaders import ModelSpec
from profiles.units import format_bytes

# The first micro-batches make gradients, connections and caches; they are not counted.
_WARM_UP = 3
# Interpreter, torch and transformers of one process (measured: 0.23 GiB with torch alone).
_PROCESS_BYTES = 0.5 * 2**30


def measure_graph(
    spec: ModelSpec,
    graph: ModelGraph,
    *,
    num_processes: int,
    threads_per_device: int = 1,
    num_samples: int = 16,
    progress: Progress = no_progress,
) -> tuple[BlockPoint, ...]:
    """One point per distinct block of the model at one micro-batch size.

    graph        of the model, traced (tp = 1) for this machine's kind of device
    num_samples  counted micro-batches of every process; repeated blocks of one kind are further
                 samples

    Times are seconds of an undisturbed core (CPU time) where a device is one thread, else wall
    time. Gradients accumulate in `.grad` and two micro-batches are alive, as in a pipeline stage.
    Raises ModelError where the model does not fit into memory `num_processes` times, and RunError
    where a process fails.
    """
    if num_samples < 1:
        raise InputError(f"blocks are measured for a sample at least, asked for {num_samples}")
    _check_memory(graph, num_processes)
    total = _WARM_UP + num_samples
    progress(0, total, f"starting {num_processes} processes")
    job = {
        "spec": encode(spec),
        "micro_batch": graph.micro_batch,
        "sequence_length": graph.sequence_length,
        "dtype": graph.dtype,
        "entries": [ref.entry for ref in graph.chain],
        "total": total,
    }
    answers = run_workers(
        "profiles.hardware.probe.probe_blocks:run_blocks",
        job,
        num_processes=num_processes,
        threads_per_process=threads_per_device,
        progress=progress,
    )
    clock = "cpu" if threads_per_device == 1 and not torch.cuda.is_available() else "wall"
    points = []
    for kind, block in enumerate(graph.kinds):
        positions = [i for i, ref in enumerate(graph.chain) if ref.kind == kind]
        forward = _summary(answers, "forward", positions, clock)
        backward = _summary(answers, "backward", positions, clock)
        points.append(_point(block, forward, backward))
    return tuple(sorted(points, key=lambda point: point.kind))


def training_bytes(graph: ModelGraph) -> float:
    """Bytes that one process needs to train the whole model with two micro-batches alive.

    Weights and gradients of every parameter (tied ones once), the saved tensors of two
    micro-batches, and the highest working set of a block.
    """
    blocks = graph.blocks
    weights = sum(p.spec.memory_bytes for b in blocks for p in b.parameters if not p.tied_to)
    saved = sum(block.saved_bytes for block in blocks)
    working = max(max(b.forward_peak_bytes, b.backward_peak_bytes) for b in blocks)
    return 2.0 * weights + 2.0 * saved + working


def run_blocks(job: Mapping[str, Any], reporter: Progress) -> dict[str, Any]:
    """The job of one worker: samples per pass and position, `[wall_s, cpu_s, delay_s]`."""
    spec: ModelSpec = decode(ModelSpec, job["spec"], where="model")
    built = build_model(
        spec,
        micro_batch=int(job["micro_batch"]),
        sequence_length=int(job["sequence_length"]),
        dtype=str(job["dtype"]),
        device="cuda" if torch.cuda.is_available() else "cpu",
    )

    def forward() -> Tensor:
        return built.loss_fn(built.call(built.module, *built.args), built.targets)

    entries, total = job["entries"], int(job["total"])
    label = f"{spec.name}, micro-batch {job['micro_batch']}"
    answer: dict[str, list[list[list[float | None]]]] = {
        direction: [[] for _ in entries] for direction in ("forward", "backward")
    }
    chain = sample_chain(forward, built.module, entries)
    dist.barrier()
    for number, sample in enumerate(islice(chain, total)):
        for direction, kept in answer.items() if number >= _WARM_UP else ():
            for position, block in enumerate(getattr(sample, direction)):
                kept[position].append([block.wall_s, block.cpu_s, block.delay_s])
        reporter(number + 1, total, label)
    chain.close()
    return answer


def _check_memory(graph: ModelGraph, num_processes: int) -> None:
    each = training_bytes(graph) + _PROCESS_BYTES
    available = available_memory_bytes()
    if num_processes * each > available:
        raise ModelError(
            f"measuring the blocks of {graph.name} at micro-batch {graph.micro_batch} needs "
            f"{format_bytes(num_processes * each)} ({num_processes} processes of "
            f"{format_bytes(each)}), this machine has {format_bytes(available)} available; "
            "measure a smaller micro-batch, fewer processes, or the same model with fewer layers "
            "(equal blocks have equal times)"
        )


def _summary(
    answers: Sequence[Mapping[str, Any]], direction: str, positions: Sequence[int], clock: str
) -> Summary:
    samples = [
        Sample(wall_s=wall, cpu_s=cpu, delay_s=delay)
        for answer in answers
        for position in positions
        for wall, cpu, delay in answer[direction][position]
    ]
    return summarise(samples, clock=clock, compute_only=clock == "cpu")


def _point(block: Block, forward: Summary, backward: Summary) -> BlockPoint:
    return BlockPoint(
        kind=block.kind,
        label=block.label,
        forward_s=forward.time_s,
        backward_s=backward.time_s,
        sample_count=min(forward.count, backward.count),
        spread=max(forward.spread, backward.spread),
    )
