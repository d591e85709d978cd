"""`footprint`: the memory of a training run that is described by figures, part by part.

A rank's peak is what it always holds, the activations of the micro-batches in flight, and what is
there besides at the worst moment of the step. Three numbers come of it: what the framework
allocates, what its allocator reserves, and what the device shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from profiles.hardware.catalog import get_device
from simulator.training_run.activation_footprint import RankFacts, TensorSizes, activation_bytes
from simulator.training_run.in_flight_batches import most_in_flight
from simulator.training_run.memory_stack import MemoryStack, load_memory_stack
from simulator.training_run.stage_share import StageShare, stage_shares
from simulator.training_run.static_footprint import static_bytes
from simulator.training_run.training_run import TrainingRun


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFootprint:
    """The peak of one device of a pipeline rank, in bytes.

    always        workspaces and buffers that last
    activations   of all micro-batches in flight
    moment_bytes  what is there besides at the peak, whose name is `moment`
    """

    rank: int
    parameters: float
    gradients: float
    optimizer: float
    always: float
    activations: float
    moment: str
    moment_bytes: float
    reserved_bytes: float

    @property
    def static(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.always

    @property
    def allocated_bytes(self) -> float:
        return self.static + self.activations + self.moment_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The peaks of a run.

    ranks            one per pipeline rank
    allocated_bytes  of the fullest rank, as torch.cuda.max_memory_allocated counts
    reserved_bytes   as torch.cuda.max_memory_reserved counts
    device_bytes     as nvidia-smi shows it: with the context, the loaded kernels and NCCL
    shown_bytes      what the stack's own report prints, of the rank that it prints
    """

    ranks: tuple[RankFootprint, ...]
    allocated_bytes: float
    reserved_bytes: float
    device_bytes: float
    shown_bytes: float

    @property
    def fullest(self) -> RankFootprint:
        return max(self.ranks, key=lambda rank: rank.reserved_bytes)


def footprint(run: TrainingRun) -> Footprint:
    """The memory that a device of each pipeline rank needs.

    Raises UnknownNameError where no memory file describes the run's stack.
    """
    stack = load_memory_stack(run.stack)
    sizes = TensorSizes(run, stack)
    shares = stage_shares(run, stack.stage_split)
    in_flight = most_in_flight(run)
    ranks = tuple(
        _rank_footprint(
            run,
            stack,
            sizes,
            rank,
            tuple(share for share in shares if share.rank == rank),
            in_flight[rank],
        )
        for rank in range(run.pp)
    )
    reserved = max(rank.reserved_bytes for rank in ranks)
    shown = [ranks[0]] if stack.peak_rank == "first" else ranks
    return Footprint(
        ranks=ranks,
        allocated_bytes=max(rank.allocated_bytes for rank in ranks),
        reserved_bytes=reserved,
        device_bytes=reserved + get_device(run.device).reserved_bytes.value,
        shown_bytes=max(
            r.allocated_bytes if stack.shows == "allocated" else r.reserved_bytes for r in shown
        ),
    )


def fits(run: TrainingRun) -> bool:
    """Whether the fullest rank stays within what its device leaves to a framework."""
    return footprint(run).reserved_bytes <= get_device(run.device).usable_bytes


def _rank_footprint(
    run: TrainingRun,
    stack: MemoryStack,
    sizes: TensorSizes,
    rank: int,
    shares: tuple[StageShare, ...],
    in_flight: float,
) -> RankFootprint:
    static = static_bytes(run, stack, shares, sizes.vocabulary)
    here = RankFacts(
        num_parameters=static.num_parameters, conditions=frozenset(_conditions(rank, shares))
    )
    always = sizes.total(stack.always, here)
    per_layer = activation_bytes(run, stack, sizes)
    kept = sum(
        share.dense_layers * per_layer.dense_layer + share.expert_layers * per_layer.expert_layer
        for share in shares
    )
    activations = kept * in_flight / max(1, len(shares))
    moments = [("activations", activations, 0.0)]
    for moment in stack.moments:
        extra = sizes.total(moment.tensors, here)
        if moment.where == "step":
            moments.append((moment.name, 0.0, extra))
        elif moment.where == "layer":
            if any(share.num_layers for share in shares):
                moments.append((moment.name, activations, extra + per_layer.rerun))
        elif any(
            share.has_head if moment.where == "head" else share.has_embedding for share in shares
        ):
            moments.append((moment.name, activations, extra))
    name, held, extra = max(moments, key=lambda item: item[1] + item[2])
    come_and_go = held + extra
    return RankFootprint(
        rank=rank,
        parameters=static.parameters,
        gradients=static.gradients,
        optimizer=static.optimizer,
        always=always,
        activations=held,
        moment=name,
        moment_bytes=extra,
        reserved_bytes=static.total + always + come_and_go * stack.fragmentation,
    )


def _conditions(rank: int, shares: tuple[StageShare, ...]) -> Iterator[str]:
    if any(share.dense_layers for share in shares):
        yield "dense-layers-here"
    if any(share.expert_layers for share in shares):
        yield "expert-layers-here"
    if rank > 0:
        yield "later-rank"
