"""`KeptTensor`: tensors that a framework keeps in memory, and moments of a step that may peak."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from profiles.errors import InputError, UnknownNameError
from simulator.training_run.framework.run_conditions import CONDITIONS, RANK_CONDITIONS
from simulator.training_run.framework.tensor_width import WIDTHS

_BOTH = ("input", "norm", "normed", "attention", "attention-again", "projected", "core")
DENSE_PARTS = (*_BOTH, "mlp", "mlp-again", "activation")
EXPERT_PARTS = (*_BOTH, "routing", "experts", "expert-activation", "shared")
PARTS = ("", *DENSE_PARTS, *EXPERT_PARTS)
SPLITS = ("tp", "sequence", "vocabulary", "none")
PLACES = ("layer", "head", "embedding", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTensor:
    """A tensor that stays in memory.

    part    of a layer, which decides the recompute kinds that free it: `input` is the layer's
            input, `core` the attention core, `projected` queries, keys and values that are
            projected up from latents, `-again` is freed if every second matmul is kept,
            `normed` the output of a norm, `activation` that of an activation function
    width   elements per token, or of a whole weight (framework/tensor_width.py)
    bytes   per element;  count  tensors of this kind
    split   sharding: `tp`, `sequence` (tp, with sequence parallelism only), `vocabulary` (tp, where
            the framework splits that) or `none`
    only    conditions, all required (framework/run_conditions.py)
    most    for the width `parameters`: largest number of elements (bucket size); 0 for no limit

    Raises UnknownNameError for an unknown name, InputError for a negative size.
    """

    name: str
    width: str
    bytes: float = 2.0
    count: float = 1.0
    part: str = ""
    split: str = "tp"
    only: tuple[str, ...] = ()
    most: float = 0.0

    def __post_init__(self) -> None:
        check_name("part", self.part, PARTS, self.name)
        check_name("split", self.split, SPLITS, self.name)
        check_name("width", self.width, WIDTHS, self.name)
        for condition in self.only:
            check_name("condition", condition, (*CONDITIONS, *RANK_CONDITIONS), self.name)
        if self.most and self.width != "parameters":
            raise InputError(f"{self.name}: `most` limits the width parameters, not {self.width}")
        if self.most < 0.0:
            raise InputError(f"{self.name}: most {self.most:g} must be 0 (no limit) or more")
        if self.bytes < 0.0 or self.count < 0.0:
            raise InputError(
                f"{self.name}: bytes {self.bytes:g} and count {self.count:g} must be 0 or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LingeringTensor:
    """Freed tensors whose blocks the allocator cannot reuse yet.

    A tensor read by a collective on another stream is free for the host at once, but for the device
    only after that stream has passed the collective (torch, Tensor.record_stream). A host that runs
    ahead allocates new blocks for each, until the device's launch queue is full. Such blocks count
    as reserved, not as allocated (c10/cuda/CUDACachingAllocator.cpp, `free`). The allocator waits
    for them if memory is short.

    width, bytes, split, only   as in KeptTensor
    each   number per layer and micro-batch in flight;  most  largest number on a rank
    """

    name: str
    width: str
    each: float
    most: float
    bytes: float = 2.0
    split: str = "none"
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.each < 0.0 or self.most < 0.0:
            raise InputError(
                f"{self.name}: each {self.each:g} and most {self.most:g} must be 0 or more"
            )
        self.one()

    def one(self) -> KeptTensor:
        """A single tensor; raises the errors of KeptTensor."""
        return KeptTensor(
            name=self.name, width=self.width, bytes=self.bytes, split=self.split, only=self.only
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment of a step that may be the peak: tensors in addition to the kept activations.

    where   `layer` (backward of a layer), `head` (rank of the loss), `embedding` (rank of the
            tokens) or `step` (the optimizer runs and no activation is kept)
    """

    name: str
    where: str
    tensors: tuple[KeptTensor, ...]

    def __post_init__(self) -> None:
        check_name("place", self.where, PLACES, self.name)


def check_name(kind: str, value: str, names: Collection[str], where: str) -> None:
    """Raises UnknownNameError unless `value` is one of `names`."""
    if value not in names:
        raise UnknownNameError(kind, value, names, where=where)
