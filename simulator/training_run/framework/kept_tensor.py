"""`KeptTensor`: tensors that a framework keeps in memory, and moments of a step that may peak."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from profiles.errors import InputError, UnknownNameError
from profiles.model.figures.transformer import Transformer
from simulator.training_run.framework.run_conditions import CONDITIONS, RANK_CONDITIONS
from simulator.training_run.run.training_run import TrainingRun

Width = Callable[[TrainingRun, int], float]
"""(run, padded vocabulary) -> elements."""


def _query_size(model: Transformer) -> int:
    x = model.latent
    return model.head_size if x is None else x.nope_size + x.rope_size


def _value_size(model: Transformer) -> int:
    return model.head_size if model.latent is None else model.latent.value_size


def _queries(model: Transformer) -> float:
    """Number of query heads of the average layer, including those of a gated attention's gate."""
    return model.attention_share * model.num_heads * (2 if model.gated_attention else 1)


def _keys(model: Transformer) -> float:
    """Number of key (or value) heads of the average layer."""
    latent = model.latent is not None
    return model.attention_share * (model.num_heads if latent else model.num_kv_heads)


def _routed(run: TrainingRun) -> float:
    return run.fullest_expert_load * run.model.top_k


TOKEN_WIDTHS: dict[str, Width] = {
    "hidden": lambda run, _: run.model.hidden_size,
    "query": lambda run, _: _queries(run.model) * _query_size(run.model),
    "key": lambda run, _: _keys(run.model) * _query_size(run.model),
    "value": lambda run, _: _keys(run.model) * _value_size(run.model),
    "core": lambda run, _: run.model.attention_share * _core(run.model),
    "heads": lambda run, _: run.model.attention_share * run.model.num_heads,
    "scores": lambda run, _: run.model.attention_share * run.model.num_heads * run.seq_len,
    "query_latent": lambda run, _: (
        run.model.attention_share * run.model.latent.query_rank if run.model.latent else 0
    ),
    "key_value_latent": lambda run, _: (
        run.model.attention_share * run.model.latent.key_value_rank if run.model.latent else 0
    ),
    "ffn": lambda run, _: run.model.dense_density * run.model.ffn_size,
    "routed": lambda run, _: _routed(run) * run.model.expert_width,
    "routed_expert": lambda run, _: _routed(run) * run.model.expert_size,
    "shared": lambda run, _: run.model.num_shared_experts * run.model.expert_size,
    "router": lambda run, _: run.model.num_experts,
    "state_inner": lambda run, _: (
        run.model.state_share * run.model.state.inner_size if run.model.state else 0
    ),
    "state_shared": lambda run, _: (
        run.model.state_share * (run.model.state.shared_size + run.model.state.gate_size)
        if run.model.state
        else 0
    ),
    "vocabulary": lambda _, vocabulary: vocabulary,
}
"""Elements per token of the activations of a layer and of the head, before any split.

For the average layer if some layers have no attention or feed-forward. `core` is the attention's
output, `scores` a token's row of every head. `routed` and `routed_expert` count every token top_k
times, multiplied by the expert imbalance of the fullest rank. (Without a capacity factor no tokens
are dropped: Megatron-Core, transformer/moe/token_dispatcher.py.)"""

WEIGHT_WIDTHS: dict[str, Width] = {
    "bytes": lambda run, _: 1,
    "head_weight": lambda run, vocabulary: vocabulary * run.model.hidden_size,
    "attention_in_weights": lambda run, _: (
        run.model.attention_parameters - _core(run.model) * run.model.hidden_size
    ),
    "attention_out_weight": lambda run, _: _core(run.model) * run.model.hidden_size,
    "mlp_weights": lambda run, _: run.model.dense_parameters,
    "expert_weights": lambda run, _: run.model.expert_parameters,
    "all_expert_weights": lambda run, _: run.model.num_experts * run.model.expert_parameters,
    "shared_weights": lambda run, _: run.model.shared_expert_parameters,
}
"""Elements of whole weights, before any split; `bytes` is 1, for tensors of a fixed size."""

# `parameters` is the number per rank, after tensor, pipeline and expert parallelism.
WIDTHS = (*TOKEN_WIDTHS, *WEIGHT_WIDTHS, "parameters")


def _core(model: Transformer) -> int:
    """Elements per token of an attention's output."""
    return model.num_heads * _value_size(model)


CHECKPOINT = "checkpoint"
_BOTH = ("input", CHECKPOINT, "norm", "normed", "attention", "attention-again", "projected", "core")
DENSE_PARTS = (*_BOTH, "mlp", "mlp-again", "activation")
EXPERT_PARTS = (*_BOTH, "routing", "experts", "expert-activation", "shared")
PARTS = ("", *DENSE_PARTS, *EXPERT_PARTS)
SPLITS = ("tp", "sequence", "vocabulary", "none")
PLACES = ("layer", "head", "embedding", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTensor:
    """A tensor that stays in memory.

    part    of a layer, which decides the recompute kinds that free it: `input` is the layer's
            input, `checkpoint` the same, kept under `full` only, `core` the attention core,
            `projected` queries, keys and values that are projected up from latents, `-again` is
            freed if every second matmul is kept, `normed` the output of a norm, `activation` that
            of an activation function
    width   elements per token, or of a whole weight (framework/kept_tensor.py)
    bytes   per element
    count   tensors of this kind
    split   sharding: `tp`, `sequence` (tp, with sequence parallelism only), `vocabulary` (tp, if
            the framework splits the vocabulary) or `none`
    only    conditions, all required (framework/run_conditions.py)
    most    for the width `parameters`: maximum number of elements (bucket size); 0 for no limit

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

    If a collective on another stream reads a tensor, the host may free it at once, but the device
    only after that stream has passed the collective (torch, Tensor.record_stream). A host that runs
    ahead allocates new blocks for each, until the device's launch queue is full. Such blocks count
    as reserved, not as allocated (c10/cuda/CUDACachingAllocator.cpp, `free`). The allocator waits
    for them if memory is short.

    width, bytes, split, only   as in KeptTensor
    each   number per layer and micro-batch in flight
    most   maximum number on a rank
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
