"""Lasting memory of a rank of our executor, from the parameters of its traced blocks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from profiles.model.graph import BlockRef, ModelGraph, Parameter, TensorSpec, parameter_name
from simulator.memory.data_group import Sharing
from simulator.memory.static import State, StaticBytes, static_bytes

Figures = TypeVar("Figures", float, npt.NDArray[np.float64])

# Gradients are summed in pieces of this size, as DDP does (bucket_cap_mb, torch documentation).
GRADIENT_BUCKET_BYTES = 25 * 2**20


def shard_dimension(shape: Sequence[int], shares: int) -> int:
    """The dimension in which FSDP2 shards a parameter over `shares` replicas: its rows; if they are
    fewer (experts in one tensor), the longest other dimension that `shares` divides, if any.

    >>> shard_dimension((8, 28672, 4096), 8), shard_dimension((8, 28672, 4096), 64)
    (0, 1)
    """
    if not shape or shape[0] >= shares:
        return 0
    even = [d for d in range(1, len(shape)) if shape[d] and shape[d] % shares == 0]
    return max(even, key=lambda d: shape[d], default=0)


def padded_elements(spec: TensorSpec, shares: int) -> int:
    """Elements of a parameter on all of `shares` replicas under FSDP2: of sharded rows every shard
    has the size of the first, padded with zeros. A scalar is not sharded
    (executor/parallelize.py, `kept_whole`)."""
    if not spec.shape or not spec.num_elements or shard_dimension(spec.shape, shares):
        return spec.num_elements
    rows = spec.shape[0]
    return -(-rows // shares) * shares * (spec.num_elements // rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockBytes:
    """Bytes per micro-batch of a block on one rank.

    saved_bytes          kept from forward to backward in addition to the block's inputs
    freed_input_bytes    of the inputs, freed after the block's forward, except as a stage's first
    weight_bytes         kept from I to W if the backward is split, for any recomputation: inputs of
                         matmuls with weights, and gradients of their outputs
                         (executor/split_backward.py); all saved bytes if these were not traced
    table_bytes          kept tensors of earlier blocks that it reads (profiles/model/graph.py)
    input_bytes, output_bytes   tensors that cross the cuts before and after the block
    forward_transient_bytes, backward_transient_bytes   highest bytes alive while the block runs, in
                                                        addition to kept ones (backward: including
                                                        gradients of its inputs and outputs)
    parameters           of the block
    """

    saved_bytes: float
    weight_bytes: float
    input_bytes: float
    output_bytes: float
    forward_transient_bytes: float
    backward_transient_bytes: float
    parameters: tuple[Parameter, ...]
    freed_input_bytes: float = 0.0
    table_bytes: float = 0.0

    def moved(self, sharing: Sharing) -> tuple[int, int, int]:
        """Elements per micro-batch that FSDP2 gathers for the forward, gathers for the backward,
        and reduces in the backward; only if it does so in each micro-batch (`Sharing.gathers`).

        A unit that is called several times is gathered for each call. Its gradients are reduced
        with its first call, whose backward is the last. Other weights that several blocks share
        belong to the root unit, which is gathered once without a pipeline. ZeRO 2 gathers once for
        all forwards; before a backward it gathers again only what a later call has freed.
        """
        forward = backward = summed = 0
        for p in self.parameters:
            first = not p.tied_to
            once = int(first or (sharing.pipelined and not p.calls))
            calls, freed = p.calls or (once, once)
            if sharing.zero_stage == 2:
                calls, freed = int(first), freed - first
            size = padded_elements(p.spec, sharing.degrees.shard_replicas)
            forward += size * calls
            backward += size * freed
            summed += size * (first and p.trainable and not sharing.pipelined)
        return forward, backward, summed

    @property
    def parameter_count(self) -> int:
        """Number of elements of all its parameters."""
        return sum(p.spec.num_elements for p in self.parameters)

    @property
    def trained_count(self) -> int:
        """Number of elements of its trained parameters."""
        return sum(p.spec.num_elements for p in self.parameters if p.trainable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Elements of a rank's parameters: one entry per trained parameter, and the sum of frozen ones.
    If replicas shard them, the sum over all replicas.

    single    number of trained scalars, which are not sharded
    summed    elements of trained parameters with gradients that are summed over tp
    again     elements of units called several times that FSDP2 gathers again in the last backward
    resummed  trained elements of these units; their gradients from earlier micro-batches are
              reduced separately
    """

    trained: tuple[int, ...]
    frozen: int
    single: int = 0
    summed: int = 0
    again: int = 0
    resummed: int = 0


def held_parameters(graph: ModelGraph, refs: Sequence[BlockRef], shares: int = 1) -> Held:
    """The parameters of these blocks, shared ones once, sharded over `shares` replicas."""
    found: dict[str, Parameter] = {}
    freed: Counter[str] = Counter()
    for ref in refs:
        for parameter in graph.kinds[ref.kind].parameters:
            name = parameter_name(ref, parameter)
            found.setdefault(name, parameter)
            freed[name] += parameter.calls[1] if parameter.calls else 0
    several = {name: (found[name], count) for name, count in freed.items() if count > 1}
    return Held(
        trained=tuple(padded_elements(p.spec, shares) for p in found.values() if p.trainable),
        frozen=sum(padded_elements(p.spec, shares) for p in found.values() if not p.trainable),
        single=sum(p.trainable and not p.spec.shape for p in found.values()),
        summed=sum(
            padded_elements(p.spec, shares) for p in found.values() if p.trainable and p.summed
        ),
        again=sum(padded_elements(p.spec, shares) * (n - 1) for p, n in several.values()),
        resummed=sum(padded_elements(p.spec, shares) for p, _ in several.values() if p.trainable),
    )


def held_by_stages(
    graph: ModelGraph, stages: Iterable[Sequence[BlockRef]], shares: int = 1
) -> Held:
    """The parameters of these stages, sharded over `shares` replicas. Each stage has its own copy
    of shared ones (executor/rank.py)."""
    each = [held_parameters(graph, refs, shares) for refs in stages]
    return Held(
        trained=tuple(size for held in each for size in held.trained),
        frozen=sum(held.frozen for held in each),
        single=sum(held.single for held in each),
        summed=sum(held.summed for held in each),
        again=sum(held.again for held in each),
        resummed=sum(held.resummed for held in each),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """Elements of a rank's parameters, after tensor-parallel sharding.

    total, trained  of all and of trained parameters, summed over replicas, with padding
    gradients       of trained parameters, without padding
    """

    total: float
    trained: float
    gradients: float


def elements_of(graph: ModelGraph, stages: Sequence[Sequence[BlockRef]], shares: int) -> Elements:
    """Elements of the parameters of these stages, sharded over `shares` replicas."""
    held = held_by_stages(graph, stages, shares)
    trained = float(sum(held.trained))
    return Elements(
        total=trained + held.frozen,
        trained=trained,
        gradients=float(sum(held_by_stages(graph, stages).trained)),
    )


def executor_static_bytes(held: Elements, sharing: Sharing) -> StaticBytes:
    """Parameters, gradients and optimizer states of one rank, without FSDP2's buffers around a
    block (sharded_units.py).

    FSDP2 shards the stored weights under ZeRO 1 to 3. ZeRO 1 and 2 also keep a whole copy in the
    compute type. Gradients stay whole until the last micro-batch under ZeRO 1 and in a pipeline;
    without a pipeline, ZeRO 2 and 3 reduce and shard them in each backward. Frozen parameters have
    neither gradients nor states. Unsharded, they exist in the compute type only
    (executor/working_copies.py). Shards may be in host memory (`offloaded`).
    """
    sizes, stack = sharing.sizes, sharing.stack
    n, trained = held.total, held.trained
    on_device = not sharing.offloaded
    if sharing.sharded:
        parameters = [State(sizes.parameter_bytes * on_device, n, shared_from=1)]
        if sharing.zero_stage < 3:
            parameters.append(State(sizes.compute_bytes, n))
    else:
        stored = sizes.parameter_bytes + sizes.working_copy_bytes
        parameters = [State(sizes.compute_bytes, n - trained), State(stored, trained)]
    gradients = [State(sizes.gradient_bytes, held.gradients)]
    if sharing.zero_stage >= 2 and not sharing.pipelined:
        gradients = [State(sizes.gradient_bytes * on_device, trained, shared_from=2)]
    states = stack.optimizer_bytes.of(sharing.workload.optimizer) * on_device
    return static_bytes(
        parameters=parameters,
        gradients=gradients,
        optimizer=[State(states, trained, shared_from=1)],
        zero_stage=sharing.zero_stage,
        ranks=sharing.degrees.shard_replicas,
    )


def host_bytes(held: Held, sharing: Sharing) -> float:
    """Host memory of a rank whose shards are offloaded: weights and gradients in pinned memory, of
    which torch takes powers of two (host_offload.py), frozen ones twice theirs at most, and the
    states of the optimizer; 0 if they are on the device."""
    if not sharing.offloaded:
        return 0.0
    ranks, each = sharing.degrees.shard_replicas, sharing.sizes.parameter_bytes
    shards = [each * elements / ranks for elements in held.trained]
    pinned = sum(2.0 ** math.ceil(math.log2(size)) for size in shards if size)
    states = sharing.stack.optimizer_bytes.of(sharing.workload.optimizer) * sum(held.trained)
    return 2.0 * pinned + states / ranks + 2.0 * each * held.frozen / ranks


def exchange_bytes(total: Figures, sharing: Sharing) -> Figures:
    """Temporary memory after the last backward of a rank: one bucket of gradients that is being
    exchanged. The optimizer allocates nothing (executor/rank.py).

    total  elements of the rank's trained parameters, or an array of them
    """
    bucket: Figures = 0.0 * total
    if sharing.degrees.dp > 1 and sharing.zero_stage == 0:
        bucket = np.minimum(4.0 * total, GRADIENT_BUCKET_BYTES)
    return bucket
