"""Measure whole blocks of a model in place on this machine, for accurate predictions.

Sums of isolated ops are 4-9 % too low on a CPU; whole blocks predict a stage within 1-5 %: in
place, the caches are as the block before left them, and code between the ops is included. All
processes train the whole model at the same time, so that the shared memory is as busy as in
training.

Forward: the time is noted when the module that opens a block is called. Backward: the tensors that
cross the cut pass through an identity. Its backward notes the time when all their gradients have
arrived, which is the end of the backward of the block after the cut. The model is not changed.

Micro-batches run as on the first of two pipeline ranks: the forward of the next one comes before
the backward of the last one, so that two graphs are alive, and gradients accumulate in `.grad`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from profiles.document import decode, encode
from profiles.errors import InputError, ModelError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import (
    ActionOverhead,
    BlockPoint,
    ReferencePoint,
    StepOverhead,
)
from profiles.hardware.probe.cpu_clock import (
    ClockReading,
    Sample,
    Summary,
    ThreadClock,
    between,
    summarise,
)
from profiles.hardware.probe.fingerprint import available_memory_bytes
from profiles.hardware.probe.probe_workers import Progress, no_progress, run_workers
from profiles.model.building.build import build_model
from profiles.model.graph import ModelGraph
from profiles.model.loaders import ModelSpec
from profiles.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSample:
    """One micro-batch: times of the forward and the backward of each block."""

    forward: tuple[Sample, ...]
    backward: tuple[Sample, ...]


class _Stamps:
    """The times of the running micro-batch.

    starts, ends  of the blocks' forwards; inserting the identity at a cut takes some 20 us, which
                  count for neither block
    backward      cut -> when its gradients arrived
    """

    def __init__(self, entries: Sequence[str], clock: ThreadClock) -> None:
        self.entries = tuple(entries)
        self.clock = clock
        self.reset()

    def reset(self) -> None:
        """Begin the forward of the next micro-batch."""
        self.starts = [self.now()]
        self.ends: list[ClockReading] = []
        self.backward: dict[int, ClockReading] = {}

    def now(self) -> ClockReading:
        """The clocks; on an accelerator, after the end of all launched kernels."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return self.clock.read()


class _Cut(torch.autograd.Function):
    """Identity; its backward notes the time of cut number `index` of its micro-batch."""

    @staticmethod
    def forward(
        ctx: Any,
        index: int,
        readings: dict[int, ClockReading],
        now: Callable[[], ClockReading],
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.index, ctx.readings, ctx.now = index, readings, now
        ctx.set_materialize_grads(False)
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.readings[ctx.index] = ctx.now()
        return (None, None, None, *gradients)


def sample_chain(
    forward: Callable[[], Tensor], module: nn.Module, entries: Sequence[str]
) -> Generator[ChainSample, None, None]:
    """Unlimited samples of one micro-batch each.

    forward  runs the whole model and returns the scalar loss
    entries  per block the path of the module whose call opens it, "" for the first

    Raises ModelError if the forward pass does not call the entries in order.
    """
    with ThreadClock() as clock:
        stamps = _Stamps(entries, clock)
        with _cuts(module, stamps):
            waiting = _run_forward(forward, stamps)
            while True:
                following = _run_forward(forward, stamps)
                yield _run_backward(*waiting, stamps)
                waiting = following


_Forward = tuple[Tensor, tuple[Sample, ...], dict[int, ClockReading]]
"""The loss of a micro-batch, its forward times, and the times of its cuts in the backward."""


def _run_forward(forward: Callable[[], Tensor], stamps: _Stamps) -> _Forward:
    stamps.reset()
    loss = forward()
    stamps.ends.append(stamps.now())
    reached = len(stamps.ends)
    if reached != len(stamps.entries):
        raise ModelError(
            f"the forward pass never called {stamps.entries[reached]!r}, which opens block "
            f"{reached} of the traced chain: the model runs differently from when it was traced"
        )
    passed = tuple(between(a, b) for a, b in zip(stamps.starts, stamps.ends, strict=True))
    return loss, passed, stamps.backward


def _run_backward(
    loss: Tensor,
    forward: tuple[Sample, ...],
    readings: Mapping[int, ClockReading],
    stamps: _Stamps,
) -> ChainSample:
    first = stamps.now()
    loss.backward()
    ends = [stamps.now()]
    # Ends of the blocks' backwards, first block first. If no gradient crosses the cut before a
    # block, nothing runs backward before it: its backward lasts until the next end.
    for index in range(1, len(forward)):
        ends.append(readings.get(index, ends[-1]))
    passed = tuple(between(a, b) for a, b in zip([*ends[1:], first], ends, strict=True))
    return ChainSample(forward=forward, backward=passed)


@contextmanager
def _cuts(module: nn.Module, stamps: _Stamps) -> Iterator[None]:
    """Hooks on every module that opens a block."""
    modules = dict(module.named_modules())
    handles = []
    try:
        for entry in sorted(set(stamps.entries[1:])):
            if entry not in modules:
                raise ModelError(f"the model has no module {entry!r}, which opens a traced block")
            hook = _entry_hook(entry, stamps)
            handles.append(
                modules[entry].register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
            )
        yield
    finally:
        for handle in handles:
            handle.remove()


def _entry_hook(entry: str, stamps: _Stamps) -> Callable[..., Any]:
    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        index = len(stamps.starts)
        if index >= len(stamps.entries) or stamps.entries[index] != entry:
            return None  # a further call of a module that is used more than once
        stamps.ends.append(stamps.now())
        passed = through_cut((args, kwargs), index, stamps.backward, stamps.now)
        stamps.starts.append(stamps.now())
        return passed

    return hook


def through_cut(
    arguments: Any,
    index: int,
    readings: dict[int, ClockReading],
    now: Callable[[], ClockReading],
) -> Any:
    """The arguments, with all tensors that have a gradient passed through one identity.

    readings  its backward stores `now()` there under `index`, once all the gradients have arrived
    """
    leaves, structure = pytree.tree_flatten(arguments)
    positions = [i for i, leaf in enumerate(leaves) if _carries_gradient(leaf)]
    if positions:
        passed = _Cut.apply(index, readings, now, *(leaves[i] for i in positions))  # type: ignore[no-untyped-call] # torch's
        for position, tensor in zip(positions, passed, strict=True):
            leaves[position] = tensor
    return pytree.tree_unflatten(leaves, structure)


def _carries_gradient(leaf: object) -> bool:
    """True for a tensor that crosses the cut with a gradient; parameters belong to both sides."""
    return isinstance(leaf, Tensor) and leaf.requires_grad and not isinstance(leaf, nn.Parameter)


# The first micro-batches allocate gradients, connections and caches; they are not counted.
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
    num_samples  counted micro-batches per process; repeated blocks of one kind add samples

    Times are CPU seconds if a device is one thread, otherwise wall time. Raises ModelError if the
    model does not fit into memory `num_processes` times, and RunError if a process fails.
    """
    if num_samples < 1:
        raise InputError(f"measuring blocks needs at least one sample, got {num_samples}")
    _check_memory(graph, num_processes)
    total = _WARM_UP + num_samples
    progress(0, total, f"starting {num_processes} processes")
    job = _Job(
        spec=spec,
        micro_batch=graph.micro_batch,
        sequence_length=graph.sequence_length,
        dtype=graph.dtype,
        entries=tuple(ref.entry for ref in graph.chain),
        total=total,
    )
    answers = run_workers(
        "profiles.hardware.probe.probe_blocks:run_blocks",
        encode(job),
        num_processes=num_processes,
        threads_per_process=threads_per_device,
        progress=progress,
    )
    chains = [
        sample
        for answer in answers
        for sample in decode(tuple[ChainSample, ...], answer["samples"], where="samples")
    ]
    clock = "cpu" if threads_per_device == 1 and not torch.cuda.is_available() else "wall"

    def summary(passes: Sequence[tuple[Sample, ...]], kind: int) -> Summary:
        positions = [i for i, ref in enumerate(graph.chain) if ref.kind == kind]
        samples = [blocks[position] for blocks in passes for position in positions]
        return summarise(samples, clock=clock, compute_only=clock == "cpu")

    points = []
    for kind, block in enumerate(graph.kinds):
        forward = summary([chain.forward for chain in chains], kind)
        backward = summary([chain.backward for chain in chains], kind)
        points.append(
            BlockPoint(
                kind=block.kind,
                label=block.label,
                forward_s=forward.time_s,
                backward_s=backward.time_s,
                sample_count=min(forward.count, backward.count),
                spread=max(forward.spread, backward.spread),
            )
        )
    return tuple(sorted(points, key=lambda point: point.kind))


def training_bytes(graph: ModelGraph) -> float:
    """Bytes that one process needs to train the whole model with two micro-batches alive: weights
    and gradients (tied ones once), the saved tensors, and the largest working set of a block."""
    blocks = graph.blocks
    weights = sum(p.spec.memory_bytes for b in blocks for p in b.parameters if not p.tied_to)
    saved = sum(block.saved_bytes for block in blocks)
    working = max(max(b.forward_peak_bytes, b.backward_peak_bytes) for b in blocks)
    return 2.0 * weights + 2.0 * saved + working


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """The job of one worker: a model, its blocks' entries, and the number of micro-batches."""

    spec: ModelSpec
    micro_batch: int
    sequence_length: int
    dtype: str
    entries: tuple[str, ...]
    total: int


def run_blocks(content: Mapping[str, Any], reporter: Progress) -> dict[str, Any]:
    """Run a `_Job` in one worker: `samples` has a ChainSample per counted micro-batch."""
    job: _Job = decode(_Job, content, where="job")
    built = build_model(
        job.spec,
        micro_batch=job.micro_batch,
        sequence_length=job.sequence_length,
        dtype=job.dtype,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )

    def forward() -> Tensor:
        return built.loss_fn(built.call(built.module, *built.args), built.targets)

    label = f"{job.spec.name}, micro-batch {job.micro_batch}"
    samples = []
    chain = sample_chain(forward, built.module, job.entries)
    dist.barrier()
    for number, sample in enumerate(islice(chain, job.total)):
        samples.append(sample)
        reporter(number + 1, job.total, label)
    chain.close()
    return {"samples": encode(samples[_WARM_UP:])}


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


def with_blocks(
    cluster: Cluster,
    points: Sequence[BlockPoint],
    *,
    references: Sequence[ReferencePoint] = (),
    action: ActionOverhead | None = None,
    step: StepOverhead | None = None,
) -> Cluster:
    """The cluster with block points on its device; a point replaces an earlier one of its kind.

    references, action, step  as in Measurements; None keeps the device's

    Raises InputError if the cluster has several kinds of device or an unmeasured one.
    """
    names = sorted({group.device.name for group in cluster.groups})
    before = cluster.groups[0].device.measurements
    if len(names) > 1 or before is None:
        raise InputError(
            "block times need a profiled machine with one kind of device: cluster "
            f"{cluster.name} has {', '.join(names)}; run `shardwright profile` on it first"
        )
    merged = {point.kind: point for point in (*before.blocks, *points)}
    measurements = replace(
        before,
        blocks=tuple(merged[kind] for kind in sorted(merged)),
        references=tuple(references) or before.references,
        action=action or before.action,
        step=step or before.step,
    )
    groups = tuple(
        replace(group, device=replace(group.device, measurements=measurements))
        for group in cluster.groups
    )
    return replace(cluster, groups=groups)
