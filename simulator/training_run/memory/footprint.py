"""`footprint`: the memory of a training run that is described by figures, part by part.

A rank's peak is what it always holds, the activations of the micro-batches in flight, and what is
there besides at the worst moment of the step. Three numbers come of it: what the framework
allocates, what its allocator reserves, and what the device shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiles.hardware.catalogue.catalog import get_device
from simulator.training_run.framework.framework import FrameworkMemory, memory_of
from simulator.training_run.memory.activation_footprint import ActivationBytes, activation_bytes
from simulator.training_run.memory.static_footprint import StaticBytes, static_bytes
from simulator.training_run.memory.tensor_sizes import RankFacts, TensorSizes, tensor_sizes
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.frozen_weights import widened_bytes
from simulator.training_run.work.stage_share import StageShare, rank_conditions, stage_split

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLayers:
    """So many layers of a rank that keep as many bytes each of one micro-batch."""

    name: str
    count: int
    bytes_each: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFootprint:
    """The peak of one device of a pipeline rank, in bytes.

    always        buffers and workspaces that last
    kept          what its layers keep of one micro-batch;  in_flight  such micro-batches at once
    activations   of all of them at the peak
    moment        the peak's name;  moment_bytes  what is there besides at it
    working_set   what comes and goes while one layer computes: the moment's tensors and what a
                  layer keeps
    lingering     blocks that wait for a collective's stream, as far as the device has room
    reserved_bytes   blocks of the allocator, where there is room;  needed_bytes  to run at all
    """

    rank: int
    static: StaticBytes
    always: float
    kept: tuple[KeptLayers, ...]
    in_flight: float
    activations: float
    moment: str
    moment_bytes: float
    working_set: float
    lingering: float
    reserved_bytes: float
    needed_bytes: float

    @property
    def allocated_bytes(self) -> float:
        """Tensors at the fullest moment of the rank."""
        return self.static.total + self.always + self.activations + self.moment_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The peaks of a run, in bytes.

    ranks            one per pipeline rank
    allocated_bytes  of the fullest rank, as torch.cuda.max_memory_allocated counts
    reserved_bytes   as torch.cuda.max_memory_reserved counts, where there is room
    needed_bytes     what must be there for the run not to fail
    device_bytes     as nvidia-smi shows it: with the context, loaded kernels and NCCL
    shown_bytes      what the stack's own report prints, of the rank that it prints, `shown_rank`;
                     another kind of peak where the run asks for it
    refused          why the stack would not run this layout, "" if it would
    """

    ranks: tuple[RankFootprint, ...]
    allocated_bytes: float
    reserved_bytes: float
    needed_bytes: float
    device_bytes: float
    shown_bytes: float
    shown_rank: int
    refused: str = ""

    @property
    def fullest(self) -> RankFootprint:
        """The rank that needs the most."""
        return max(self.ranks, key=lambda rank: rank.needed_bytes)


def footprint(run: TrainingRun) -> Footprint:
    """The memory that a device of each pipeline rank needs.

    Raises InputError where the framework's file does not describe the run's ZeRO stage.
    """
    stack = memory_of(run)
    sizes = tensor_sizes(run)
    shares = stage_split(run)
    in_flight = run.in_flight
    layer = _layer_bytes(run, stack, sizes)
    ranks = tuple(
        _rank_footprint(run, stack, sizes, layer, rank, shares, in_flight[rank])
        for rank in range(run.degrees.pp)
    )
    reserved = max(rank.reserved_bytes for rank in ranks)
    usable = get_device(run.device).usable_bytes
    # What is outside torch takes room from cached blocks.
    needed = max(rank.needed_bytes for rank in ranks)
    held = max(held_bytes(rank, usable) for rank in ranks)
    device = min(held + stack.device_extra_gib.value * GIB, max(usable, needed))
    device += get_device(run.device).reserved_bytes.value
    kind = run.memory_kind or stack.shows
    shown = _shown(ranks, stack, kind, usable)
    by_kind = {
        "allocated": shown.allocated_bytes,
        "reserved": held_bytes(shown, usable),
        "device": device,
    }
    return Footprint(
        ranks=ranks,
        allocated_bytes=max(rank.allocated_bytes for rank in ranks),
        reserved_bytes=reserved,
        needed_bytes=needed,
        device_bytes=device,
        shown_bytes=by_kind[kind],
        shown_rank=shown.rank,
        refused=_refusal(run, stack, shares),
    )


def held_bytes(rank: RankFootprint, usable_bytes: float) -> float:
    """Blocks that the allocator holds where the device has so much: no more than that, unless the
    rank needs more to run at all."""
    if rank.reserved_bytes <= usable_bytes:
        return rank.reserved_bytes
    return max(usable_bytes, min(rank.needed_bytes, rank.reserved_bytes))


def _shown(
    ranks: tuple[RankFootprint, ...], stack: FrameworkMemory, kind: str, usable_bytes: float
) -> RankFootprint:
    """The rank that the stack's report is of. The device's memory is the fullest rank's, whichever
    prints it."""
    first = stack.peak_rank == "first" and kind != "device"
    if kind == "allocated":
        return max(ranks[:1] if first else ranks, key=lambda rank: rank.allocated_bytes)
    return max(
        ranks[:1] if first else ranks,
        key=lambda rank: (held_bytes(rank, usable_bytes), rank.reserved_bytes),
    )


def rank_footprint(run: TrainingRun, rank: int) -> RankFootprint:
    """The footprint of one pipeline rank alone."""
    stack = memory_of(run)
    sizes = tensor_sizes(run)
    shares = stage_split(run)
    layer = _layer_bytes(run, stack, sizes)
    return _rank_footprint(run, stack, sizes, layer, rank, shares, run.in_flight[rank])


def fits(run: TrainingRun) -> bool:
    """Whether the stack runs the layout and its fullest rank stays within what the device leaves
    to a framework."""
    found = footprint(run)
    return not found.refused and found.needed_bytes <= get_device(run.device).usable_bytes


def _layer_bytes(
    run: TrainingRun, stack: FrameworkMemory, sizes: TensorSizes
) -> tuple[ActivationBytes, ActivationBytes]:
    """Of a layer under the run's recompute kind, and of one that is not run again."""
    layer = activation_bytes(run.recompute, stack, sizes)
    whole = not run.recompute_layers
    return layer, layer if whole else activation_bytes("none", stack, sizes)


def _kept_layers(
    run: TrainingRun,
    layers: tuple[ActivationBytes, ActivationBytes],
    shares: Sequence[StageShare],
) -> tuple[KeptLayers, ...]:
    """What the layers of a rank's virtual stages keep; a stage's first are those run again.

    layers  under the run's recompute kind, and of layers that are not run again (`_layer_bytes`)
    """
    again, plain = layers
    dense = expert = 0
    for share in shares:
        count = run.recompute_layers or share.num_layers
        first = min(share.dense_layers, count)
        dense += first
        expert += min(share.expert_layers, count - first)
    others = sum(share.dense_layers for share in shares) - dense
    other_experts = sum(share.expert_layers for share in shares) - expert
    found = (
        ("layers", dense, again.dense_layer),
        ("expert layers", expert, again.expert_layer),
        ("layers not recomputed", others, plain.dense_layer),
        ("expert layers not recomputed", other_experts, plain.expert_layer),
    )
    return tuple(
        KeptLayers(name=name, count=count, bytes_each=each) for name, count, each in found if count
    )


def _on_device(
    run: TrainingRun, kept: float, layers: tuple[ActivationBytes, ActivationBytes]
) -> float:
    """Of the kept activations what is not in host memory. A layer that computes needs its own back,
    and the next one's are on their way: two buffers (Transformer Engine, pytorch/cpu_offload.py,
    AsyncDoubleBufferGroupOffloadHandler)."""
    away = run.activation_offload * kept
    largest = max(max(layer.dense_layer, layer.expert_layer) for layer in layers)
    return kept - away + min(away, 2.0 * run.activation_offload * largest)


def _refusal(run: TrainingRun, stack: FrameworkMemory, shares: tuple[StageShare, ...]) -> str:
    """nanotron builds no empty stage and its 1F1B engine asserts p - 1 micro-batches
    (src/nanotron/parallel/pipeline_parallel/engine.py, OneForwardOneBackwardPipelineEngine)."""
    empty = sum(share.is_empty for share in shares)
    pp = run.degrees.pp
    if empty:
        return (
            f"{empty} of {run.degrees.pp} pipeline ranks would hold no block of {stack.name}'s cut"
        )
    if stack.stage_split == "cost" and run.num_microbatches < pp - 1:
        return (
            f"{run.num_microbatches} micro-batches are fewer than the pp - 1 = {pp - 1} that "
            f"{stack.name}'s 1F1B needs"
        )
    return ""


def _rank_footprint(
    run: TrainingRun,
    stack: FrameworkMemory,
    sizes: TensorSizes,
    layers: tuple[ActivationBytes, ActivationBytes],
    rank: int,
    shares: tuple[StageShare, ...],
    in_flight: float,
) -> RankFootprint:
    mine = tuple(share for share in shares if share.rank == rank)
    static = static_bytes(run, stack, mine, sizes.vocabulary)
    here = RankFacts(num_parameters=static.num_parameters, conditions=rank_conditions(rank, mine))
    always = sizes.total(stack.always, here)
    layer, _ = layers
    kept = _kept_layers(run, layers, mine)
    # Chunks of a rank are alike; in flight are whole chunks of a micro-batch.
    in_flight = in_flight / len(mine)
    bytes_kept = sum(each.count * each.bytes_each for each in kept)
    activations = _on_device(run, bytes_kept * in_flight, layers)
    rerun = max(
        layer.expert_rerun if any(share.expert_layers for share in mine) else 0.0,
        layer.dense_rerun if any(share.dense_layers for share in mine) else 0.0,
    )
    moments = [("end of the forward pass", activations, 0.0)]
    for moment in stack.moments:
        extra = sizes.total(moment.tensors, here)
        if moment.where == "step":
            moments.append((moment.name, 0.0, extra))
        elif moment.where == "layer" and any(share.num_layers for share in mine):
            moments.append((moment.name, activations, extra + rerun + widened_bytes(run)))
        elif moment.where == "head" and any(share.has_head for share in mine):
            # Every further token that is predicted has logits and a loss of its own.
            moments.append((moment.name, activations, extra * (1 + run.model.predicted_ahead)))
        elif moment.where == "embedding" and any(share.has_embedding for share in mine):
            moments.append((moment.name, activations, extra))
    name, held, extra = max(moments, key=lambda item: item[1] + item[2])
    lasting, passing = static.total + always, held + extra
    # Micro-batches that wait fill blocks of equal sizes again and again. Blocks are left over from
    # tensors that come and go while one layer computes.
    working_set = extra + (max((each.bytes_each for each in kept), default=0.0) if held else 0.0)
    reserved = lasting + passing + working_set * stack.cached_over_working_set.value
    layers_in_flight = sum(share.num_layers for share in mine) * in_flight
    waiting = sum(
        sizes.bytes_of(tensor.one(), here) * min(tensor.most, tensor.each * layers_in_flight)
        for tensor in stack.lingering
    )
    # Where they do not fit beside the rest the allocator waits for the device and takes them back.
    lingering = min(waiting, max(0.0, get_device(run.device).usable_bytes - reserved))
    return RankFootprint(
        rank=rank,
        static=static,
        always=always,
        kept=kept,
        in_flight=in_flight,
        activations=held,
        moment=name,
        moment_bytes=extra,
        working_set=working_set,
        lingering=lingering,
        reserved_bytes=reserved + lingering,
        # They come back in pieces between kept tensors: the runs that failed needed room for both.
        needed_bytes=lasting + passing * stack.needed_over_allocated.value + waiting,
    )
