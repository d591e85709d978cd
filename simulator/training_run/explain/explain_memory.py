"""Explanation of a run's peak memory: its terms, and the tensors in them."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.device import Device
from profiles.units import format_bytes, format_count
from simulator.memory.footprint import GIB, Footprint, PeakDetails, footprint
from simulator.memory.run_tensors import RankFacts, RunTensors
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.run.training_run import TrainingRun
from simulator.values.prediction import RankMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLine:
    """One term of the peak, in bytes."""

    name: str
    memory_bytes: float
    numbers: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLine:
    """A tensor of the framework's file in this run, per layer and micro-batch or per rank.

    where   `layer`, `always` or the moment's name
    """

    where: str
    name: str
    memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryExplanation:
    """The parts of a peak: `lines` add up to shown_bytes, the peak of pipeline rank `rank`; `shows`
    is the kind of peak."""

    rank: int
    shows: str
    shown_bytes: float
    lines: tuple[MemoryLine, ...]
    tensors: tuple[TensorLine, ...]
    stack: str
    source: str
    date: str
    refused: str


def explain_memory(run: TrainingRun) -> MemoryExplanation:
    """Terms of the peak as the framework itself reports it.

    Raises InputError if the framework's file does not describe the ZeRO stage.
    """
    tensors = RunTensors(run, load_framework(run.stack))
    stack = tensors.memory
    memory = footprint(run)
    rank, details = memory.ranks[memory.shown_rank], memory.details[memory.shown_rank]
    lines = [*_static(run, rank, details.here), *_kept(run, rank, details)]
    kind = run.memory_kind or stack.shows
    device = get_device(run.device)
    reserved = rank.reserved_bytes or 0.0
    if kind != "allocated":
        lines.append(
            MemoryLine(
                name="allocator's blocks beyond the tensors",
                memory_bytes=reserved - rank.peak_bytes - details.lingering_bytes,
                numbers=f"(moment + one layer) x {stack.cached_over_working_set.value:g}: "
                f"{stack.cached_over_working_set.source}",
            )
        )
        lines.append(
            MemoryLine(
                name="blocks waiting for a collective",
                memory_bytes=details.lingering_bytes,
                numbers="; ".join(
                    f"{tensor.each:g} per layer and micro-batch in flight, at most {tensor.most:g}"
                    for tensor in stack.lingering
                ),
            )
        )
        lines.append(
            MemoryLine(
                name="limit of the device, or more if the run needs it",
                memory_bytes=rank.held_bytes - reserved,
                numbers=f"an allocator reserves at most {format_bytes(device.usable_bytes)}, "
                "unless the run needs more",
            )
        )
    if kind == "device":
        held = device.reserved_bytes
        extra = stack.device_extra_gib
        lines.append(MemoryLine(name="driver", memory_bytes=held.value, numbers=held.source))
        others = memory.shown_bytes - held.value - rank.held_bytes
        full = ", limited by the device's memory" if others < extra.value * GIB else ""
        lines.append(
            MemoryLine(name="kernels, NCCL", memory_bytes=others, numbers=f"{extra.source}{full}")
        )
    return MemoryExplanation(
        rank=rank.rank,
        shows=kind,
        shown_bytes=memory.shown_bytes,
        lines=tuple(line for line in lines if line.memory_bytes),
        tensors=_tensors(tensors, details),
        stack=run.stack,
        source=stack.source,
        date=stack.date,
        refused=memory.refused,
    )


def _static(run: TrainingRun, rank: RankMemory, here: RankFacts) -> list[MemoryLine]:
    count = here.num_parameters
    shards = (
        ("parameters", rank.parameters_bytes, 3),
        ("gradients", rank.gradients_bytes, 2),
        ("optimizer states", rank.optimizer_bytes, 1),
    )
    lines = []
    for name, held, stage in shards:
        each = f"{format_count(count)} of the rank x {held / count:.4g} bytes" if count else ""
        if run.zero_stage >= stage:
            dp, cp = run.degrees.dp, run.degrees.cp
            each += f", shared by dp {dp} x cp {cp} (experts by their own ranks)"
        lines.append(MemoryLine(name=name, memory_bytes=held, numbers=each))
    return lines


def _kept(run: TrainingRun, rank: RankMemory, details: PeakDetails) -> list[MemoryLine]:
    each = " + ".join(f"{k.count} {k.name} x {format_bytes(k.bytes_each)}" for k in details.kept)
    away = run.activation_offload
    offloaded = f"; {away:.0%} of them in host memory, except two layers' buffers" if away else ""
    return [
        MemoryLine(
            name="permanent buffers",
            memory_bytes=rank.communication_bytes,
            numbers="buffers, workspaces",
        ),
        MemoryLine(
            name="activations",
            memory_bytes=rank.activations_bytes,
            numbers=f"({each or '0'}) x {details.in_flight:g} in flight; recompute {run.recompute}"
            f"{offloaded}",
        ),
        MemoryLine(
            name=details.moment, memory_bytes=rank.transient_bytes, numbers="allocated at the peak"
        ),
    ]


def _tensors(tensors: RunTensors, details: PeakDetails) -> tuple[TensorLine, ...]:
    memory = tensors.memory
    groups = [("layer", memory.layers), ("always", memory.always)]
    groups += [(m.name, m.tensors) for m in memory.moments if m.name == details.moment]
    lines = [
        TensorLine(
            where=where, name=tensor.name, memory_bytes=tensors.bytes_of(tensor, details.here)
        )
        for where, group in groups
        for tensor in group
    ]
    return tuple(line for line in lines if line.memory_bytes)


def fit_words(memory: Footprint, device: Device) -> str:
    """Required memory of the fullest rank by part, and the usable memory of its device, as text.

    The parts add up to the required memory; parts below 0.05 GiB are omitted.

    `needs 71.2 of 77.4 GiB (rank 0: parameters 14.9, ...); 2.2 held by driver, context and NCCL`
    """
    rank, details = memory.fullest, memory.fullest_details
    parts = {
        "parameters": rank.parameters_bytes,
        "gradients": rank.gradients_bytes,
        "optimizer": rank.optimizer_bytes,
        "buffers": rank.communication_bytes,
        f"activations of {details.in_flight:g} micro-batches in flight": rank.activations_bytes,
        details.moment: rank.transient_bytes,
        "allocator overhead": rank.limiting_bytes - rank.peak_bytes,
    }
    counted = ", ".join(
        f"{name} {size / GIB:.1f}" for name, size in parts.items() if size >= 0.05 * GIB
    )
    needed, usable = rank.limiting_bytes / GIB, device.usable_bytes / GIB
    line = (
        f"needs {needed:.1f} of {usable:.1f} GiB (rank {rank.rank}: {counted}); "
        f"{device.reserved_bytes.value / GIB:.1f} held by driver, context and NCCL"
    )
    return f"{line}; refused: {memory.refused}" if memory.refused else line
