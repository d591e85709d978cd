"""What a rank of our executor holds all step long, from the parameters of its traced blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from profiles.model.graph import BlockRef, ModelGraph, Parameter
from simulator.memory.data_group import Sharing
from simulator.memory.static import State, StaticBytes, static_bytes

Figures = TypeVar("Figures", float, npt.NDArray[np.float64])

# Gradients are summed in pieces of this size, as DDP does (bucket_cap_mb, torch documentation).
GRADIENT_BUCKET_BYTES = 25 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockBytes:
    """Bytes per micro-batch of a block on one rank.

    saved_bytes          kept from forward to backward in addition to the block's inputs
    weight_bytes         kept from I to W where the backward is split: what products with weights
                         read and the gradients of what they wrote (executor/split_backward.py),
                         however much is recomputed; where that was not traced, all that is kept
    input_bytes, output_bytes   the tensors that cross the cuts before and behind the block
    forward_transient_bytes, backward_transient_bytes   highest bytes alive while the block runs,
                         beyond what is kept of it (backward: with gradients of its boundaries)
    parameter_count, trained_count   elements of all its parameters, and of those not frozen
    """

    saved_bytes: float
    weight_bytes: float
    input_bytes: float
    output_bytes: float
    forward_transient_bytes: float
    backward_transient_bytes: float
    parameter_count: int
    trained_count: int

    @property
    def kept_bytes(self) -> float:
        """Kept from forward to backward."""
        return self.input_bytes + self.saved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Elements of the parameters that a rank holds: of each trained one, of the frozen together."""

    trained: tuple[int, ...]
    frozen: int


def parameter_name(ref: BlockRef, parameter: Parameter) -> str:
    """The name in the whole model, which parameters that share their storage have together."""
    own = f"{ref.entry}.{parameter.name}" if ref.entry else parameter.name
    return parameter.tied_to or parameter.whole_name or own


def held_parameters(graph: ModelGraph, refs: Sequence[BlockRef]) -> Held:
    """What a rank with these blocks holds, shared parameters once."""
    found: dict[str, Parameter] = {}
    for ref in refs:
        for parameter in graph.kinds[ref.kind].parameters:
            found.setdefault(parameter_name(ref, parameter), parameter)
    return Held(
        trained=tuple(p.spec.num_elements for p in found.values() if p.trainable),
        frozen=sum(p.spec.num_elements for p in found.values() if not p.trainable),
    )


def held_by_stages(graph: ModelGraph, stages: Iterable[Sequence[BlockRef]]) -> Held:
    """What a rank with these stages holds: each has a copy of its own of what they share
    (executor/rank.py)."""
    each = [held_parameters(graph, refs) for refs in stages]
    return Held(
        trained=tuple(size for held in each for size in held.trained),
        frozen=sum(held.frozen for held in each),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """Elements of the parameters that a rank holds, after tensor-parallel sharding.

    total, trained  of all of them, and of those that are not frozen
    largest, largest_trained  of its largest block
    """

    total: float
    trained: float
    largest: float = 0.0
    largest_trained: float = 0.0


def elements_of(held: Held, blocks: Sequence[BlockBytes]) -> Elements:
    """What is held, and the largest of these blocks."""
    trained = float(sum(held.trained))
    return Elements(
        total=trained + held.frozen,
        trained=trained,
        largest=float(max((block.parameter_count for block in blocks), default=0)),
        largest_trained=float(max((block.trained_count for block in blocks), default=0)),
    )


def executor_static_bytes(held: Elements, sharing: Sharing) -> StaticBytes:
    """Parameters, gradients and optimizer states of one rank.

    FSDP2 shards the weights as stored from ZeRO-1 on. ZeRO-3 gathers a block at a time, and the
    next one ahead: two of the largest. Of ZeRO-1 and under torch's pipeline runtime gradients stay
    whole until the last micro-batch; without one ZeRO-2 and 3 sum and shard them in each backward.
    Frozen parameters have neither gradients nor states, and where nothing is sharded they are kept
    only in the type that is computed with (executor/working_copies.py).
    """
    sizes, stack = sharing.sizes, sharing.stack
    n, trained = held.total, held.trained
    if sharing.sharded:
        gathered = min(n, 2 * held.largest) if sharing.zero_stage == 3 else n
        parameters = [
            State(sizes.parameter_bytes, n, shared_from=1),
            State(sizes.compute_bytes, gathered),
        ]
    else:
        stored = sizes.parameter_bytes + sizes.working_copy_bytes
        parameters = [State(sizes.compute_bytes, n - trained), State(stored, trained)]
    gradients = [State(sizes.gradient_bytes, trained)]
    if sharing.zero_stage >= 2 and not sharing.pipelined:
        gradients = [
            State(sizes.gradient_bytes, trained, shared_from=2),
            State(sizes.gradient_bytes, min(trained, 2 * held.largest_trained)),
        ]
    states = stack.optimizer_bytes.of(sharing.workload.optimizer)
    return static_bytes(
        parameters=parameters,
        gradients=gradients,
        optimizer=[State(states, trained, shared_from=1)],
        zero_stage=sharing.zero_stage,
        ranks=sharing.degrees.dp,
    )


def exchange_bytes(total: Figures, sharing: Sharing) -> Figures:
    """What comes and goes behind the last backward of a rank: a bucket of gradients that are
    exchanged. The optimizer makes nothing (executor/rank.py).

    total  elements of the rank's trained parameters, or an array of them
    """
    bucket: Figures = 0.0 * total
    if sharing.degrees.dp > 1 and sharing.zero_stage == 0:
        bucket = np.minimum(4.0 * total, GRADIENT_BUCKET_BYTES)
    return bucket
