"""Widths of a run's tensors: elements per token, and elements of whole weights."""

from __future__ import annotations

from collections.abc import Callable

from profiles.model.figures.transformer import Transformer
from simulator.training_run.run.training_run import TrainingRun

Width = Callable[[TrainingRun, int], float]
"""(run, padded vocabulary) -> elements."""


def padded_vocabulary(model: Transformer, multiple: int, tp: int) -> int:
    """The vocabulary padded to a multiple of `multiple` times tp (Megatron-LM,
    `_vocab_size_with_padding`); not padded if `multiple` is 1."""
    step = multiple * tp if multiple > 1 else 1
    return -(-model.vocab_size // step) * step


def _query_size(model: Transformer) -> int:
    x = model.latent
    return model.head_size if x is None else x.nope_size + x.rope_size


def _value_size(model: Transformer) -> int:
    return model.head_size if model.latent is None else model.latent.value_size


def _queries(model: Transformer) -> float:
    """Query heads, and as many of the attention's gate."""
    return _heads(model, model.num_heads * (2 if model.gated_attention else 1))


def _heads(model: Transformer, count: int) -> float:
    return model.attention_share * count


def _keys(model: Transformer) -> float:
    """Number of key (or value) heads."""
    return _heads(model, model.num_kv_heads if model.latent is None else model.num_heads)


def _routed(run: TrainingRun) -> float:
    return run.fullest_expert_load * run.model.top_k


TOKEN_WIDTHS: dict[str, Width] = {
    "hidden": lambda run, _: run.model.hidden_size,
    "query": lambda run, _: _queries(run.model) * _query_size(run.model),
    "key": lambda run, _: _keys(run.model) * _query_size(run.model),
    "value": lambda run, _: _keys(run.model) * _value_size(run.model),
    "core": lambda run, _: _heads(run.model, run.model.num_heads) * _value_size(run.model),
    "heads": lambda run, _: _heads(run.model, run.model.num_heads),
    "scores": lambda run, _: _heads(run.model, run.model.num_heads) * run.seq_len,
    "query_latent": lambda run, _: (
        _heads(run.model, run.model.latent.query_rank) if run.model.latent else 0
    ),
    "key_value_latent": lambda run, _: (
        _heads(run.model, run.model.latent.key_value_rank) if run.model.latent else 0
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
    "attention_in_weights": lambda run, _: run.model.attention_parameters - _core(run.model),
    "attention_out_weight": lambda run, _: _core(run.model),
    "mlp_weights": lambda run, _: run.model.dense_parameters,
    "expert_weights": lambda run, _: run.model.expert_parameters,
    "all_expert_weights": lambda run, _: run.model.num_experts * run.model.expert_parameters,
    "shared_weights": lambda run, _: run.model.shared_expert_parameters,
}
"""Elements of whole weights, before any split; `bytes` is 1, for tensors of a fixed size."""

# `parameters` is the number per rank, after tensor, pipeline and expert parallelism.
WIDTHS = (*TOKEN_WIDTHS, *WEIGHT_WIDTHS, "parameters")


def _core(model: Transformer) -> int:
    return model.num_heads * _value_size(model) * model.hidden_size
