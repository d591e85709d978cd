"""Whole blocks of a model, measured in place on this machine: what makes a prediction close.

Sums of isolated ops are 4-9 % too low on a CPU, whole blocks predict a stage within 1-5 %
(DESIGN.md, section 4): in place a block finds the caches as the block before it left them, and
pays for what runs between the ops. Every process trains the whole model at the same time, so that
the shared memory is as busy as in training.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
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
from profiles.hardware.probe.probe_chain import ChainSample, sample_chain
from profiles.hardware.probe.probe_process import Reporter
from profiles.hardware.probe.probe_workers import Progress, no_progress, run_workers
from profiles.model.building.build import build_model
from profiles.model.graph import Block, ModelGraph
from profiles.model.loaders import ModelSpec
from profiles.units import format_bytes

# The first micro-batches make gradients, connections and caches; they are not counted.
_WARM_UP = 3
# Interpreter, torch and transformers of one process (measured: 0.23 GiB with torch alone).
_PROCESS_BYTES = 0.5 * 2**30


def measure_graphs(
    spec: ModelSpec,
    graphs: Sequence[ModelGraph],
    *,
    num_processes: int,
    threads_per_device: int = 1,
    num_samples: int = 16,
    progress: Progress = no_progress,
) -> tuple[BlockPoint, ...]:
    """One point per distinct block of the model at each of its micro-batch sizes.

    graphs       of the model, traced (tp = 1) for this machine's kind of device
    num_samples  counted micro-batches of every process per size; repeated blocks of one kind are
                 further samples

    Times are seconds of an undisturbed core (CPU time) where a device is one thread, else wall
    time. Gradients accumulate in `.grad` and two micro-batches are alive, as in a pipeline stage.
    Raises ModelError where the model does not fit into memory `num_processes` times, and RunError
    where a process fails.
    """
    if not graphs or num_samples < 1:
        raise InputError("measuring blocks needs a micro-batch size and a sample at least")
    for graph in graphs:
        _check_memory(graph, num_processes)
    progress(0, len(graphs) * (_WARM_UP + num_samples), f"starting {num_processes} processes")
    sizes = [_size_job(graph) for graph in graphs]
    answers = run_workers(
        "profiles.hardware.probe.probe_blocks:run_blocks",
        {"spec": encode(spec), "sizes": sizes, "num_samples": num_samples},
        num_processes=num_processes,
        threads_per_process=threads_per_device,
        progress=progress,
    )
    clock = "cpu" if threads_per_device == 1 and not torch.cuda.is_available() else "wall"
    points: dict[str, BlockPoint] = {}
    for index, graph in enumerate(graphs):
        for kind, block in enumerate(graph.kinds):
            positions = [i for i, ref in enumerate(graph.chain) if ref.kind == kind]
            if positions and block.kind not in points:
                forward = _summary(answers, index, "forward", positions, clock)
                backward = _summary(answers, index, "backward", positions, clock)
                points[block.kind] = _point(block, forward, backward)
    return tuple(points[kind] for kind in sorted(points))


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


def run_blocks(job: Mapping[str, Any], reporter: Reporter) -> dict[str, Any]:
    """The job of one worker: samples per size, pass and position, `[wall_s, cpu_s, delay_s]`."""
    spec: ModelSpec = decode(ModelSpec, job["spec"], where="model")
    count = int(job["num_samples"])
    total = len(job["sizes"]) * (_WARM_UP + count)
    done = 0
    answers = []
    for size in job["sizes"]:
        label = f"{spec.name}, micro-batch {size['micro_batch']}"
        forward: list[list[list[float | None]]] = [[] for _ in size["entries"]]
        backward: list[list[list[float | None]]] = [[] for _ in size["entries"]]
        chain = _chain_of(spec, size)
        dist.barrier()
        for number, sample in enumerate(islice(chain, _WARM_UP + count)):
            if number >= _WARM_UP:
                for kept, passed in ((forward, sample.forward), (backward, sample.backward)):
                    for position, block in enumerate(passed):
                        kept[position].append([block.wall_s, block.cpu_s, block.delay_s])
            done += 1
            reporter(done, total, label)
        chain.close()
        answers.append({"forward": forward, "backward": backward})
    return {"sizes": answers}


def _chain_of(spec: ModelSpec, size: Mapping[str, Any]) -> Generator[ChainSample, None, None]:
    """Endless samples of the model at one micro-batch size, as training runs it."""
    built = build_model(
        spec,
        micro_batch=int(size["micro_batch"]),
        sequence_length=int(size["sequence_length"]),
        dtype=str(size["dtype"]),
        device="cuda" if torch.cuda.is_available() else "cpu",
    )

    def forward() -> Tensor:
        return built.loss_fn(built.call(built.module, *built.args), built.targets)

    return sample_chain(forward, built.module, size["entries"])


def _size_job(graph: ModelGraph) -> dict[str, Any]:
    return {
        "micro_batch": graph.micro_batch,
        "sequence_length": graph.sequence_length,
        "dtype": graph.dtype,
        "entries": [ref.entry for ref in graph.chain],
    }


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
    answers: Sequence[Mapping[str, Any]],
    index: int,
    direction: str,
    positions: Sequence[int],
    clock: str,
) -> Summary:
    samples = [
        Sample(wall_s=wall, cpu_s=cpu, delay_s=delay)
        for answer in answers
        for position in positions
        for wall, cpu, delay in answer["sizes"][index][direction][position]
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
