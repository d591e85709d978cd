"""The peak memory of one described run as a sum of lines, and the tensors that they are made of."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.hardware.catalogue.catalog import get_device
from profiles.units import format_bytes, format_count
from simulator.training_run.framework.framework import FrameworkMemory, memory_of
from simulator.training_run.memory.footprint import GIB, RankFootprint, footprint, held_bytes
from simulator.training_run.memory.tensor_sizes import RankFacts, TensorSizes
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.stage_share import rank_conditions, stage_split


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """One term of the peak, in bytes."""

    name: str
    memory_bytes: float
    numbers: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLine:
    """A tensor of the stack's file in this run: of one layer and micro-batch, or of the rank.

    where   `layer`, `always` or the moment's name
    """

    where: str
    name: str
    memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryExplanation:
    """lines add up to shown_bytes, the peak of pipeline rank `rank` in the sense `shows`."""

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
    """The parts of what the stack's own report would print.

    Raises InputError where the framework's file does not describe the ZeRO stage.
    """
    stack = memory_of(run)
    found = footprint(run)
    rank = found.ranks[found.shown_rank]
    lines = [*_static(run, rank), *_kept(run, rank)]
    kind = run.memory_kind or stack.shows
    device = get_device(run.device)
    held = held_bytes(rank, device.usable_bytes)
    if kind != "allocated":
        cached = stack.cached_over_working_set
        lines += [
            MemoryLine(
                "allocator's blocks beyond the tensors",
                rank.reserved_bytes - rank.allocated_bytes - rank.lingering,
                f"(moment + one layer) x {cached.value:g}: {cached.source}",
            ),
            MemoryLine(
                "blocks waiting for a collective",
                rank.lingering,
                "; ".join(
                    f"{tensor.each:g} per layer and micro-batch in flight, at most {tensor.most:g}"
                    for tensor in stack.lingering
                ),
            ),
            MemoryLine(
                "what the device has no room for, or the run needs beside",
                held - rank.reserved_bytes,
                f"an allocator holds {format_bytes(device.usable_bytes)} at most, unless the run "
                "needs more",
            ),
        ]
    if kind == "device":
        reserved, extra = device.reserved_bytes, stack.device_extra_gib
        beside = found.shown_bytes - reserved.value - held
        full = ", as far as the device has room" if beside < extra.value * GIB else ""
        lines.append(MemoryLine("device's own", reserved.value, reserved.source))
        lines.append(MemoryLine("kernels, NCCL", beside, f"{extra.source}{full}"))
    return MemoryExplanation(
        rank=rank.rank,
        shows=kind,
        shown_bytes=found.shown_bytes,
        lines=tuple(line for line in lines if line.memory_bytes),
        tensors=_tensors(run, stack, rank),
        stack=run.stack,
        source=stack.source,
        date=stack.date,
        refused=found.refused,
    )


def _static(run: TrainingRun, rank: RankFootprint) -> list[MemoryLine]:
    static = rank.static
    count = static.num_parameters
    shards = (
        ("parameters", static.parameters, 3),
        ("gradients", static.gradients, 2),
        ("optimizer states", static.optimizer, 1),
    )
    found = []
    for name, held, stage in shards:
        each = f"{format_count(count)} of the rank x {held / count:.4g} bytes" if count else ""
        if run.zero_stage >= stage:
            dp, cp = run.degrees.dp, run.degrees.cp
            each += f", shared by dp {dp} x cp {cp} (experts by their own ranks)"
        found.append(MemoryLine(name, held, each))
    return found


def _kept(run: TrainingRun, rank: RankFootprint) -> list[MemoryLine]:
    each = " + ".join(f"{k.count} {k.name} x {format_bytes(k.bytes_each)}" for k in rank.kept)
    away = run.activation_offload
    offloaded = f"; {away:.0%} of them in host memory but two layers' buffers" if away else ""
    return [
        MemoryLine("always there", rank.always, "buffers, workspaces"),
        MemoryLine(
            "activations",
            rank.activations,
            f"({each or '0'}) x {rank.in_flight:g} in flight; recompute {run.recompute}{offloaded}",
        ),
        MemoryLine(rank.moment, rank.moment_bytes, "there at the peak"),
    ]


def _tensors(
    run: TrainingRun, stack: FrameworkMemory, rank: RankFootprint
) -> tuple[TensorLine, ...]:
    sizes = TensorSizes(run)
    mine = tuple(s for s in stage_split(run) if s.rank == rank.rank)
    here = RankFacts(
        num_parameters=rank.static.num_parameters, conditions=rank_conditions(rank.rank, mine)
    )
    groups = [("layer", stack.layers), ("always", stack.always)]
    groups += [(m.name, m.tensors) for m in stack.moments if m.name == rank.moment]
    found = [
        TensorLine(where=where, name=tensor.name, memory_bytes=sizes.bytes_of(tensor, here))
        for where, tensors in groups
        for tensor in tensors
    ]
    return tuple(tensor for tensor in found if tensor.memory_bytes)
