"""How wide the tensors of a run are: elements per token, and elements of whole weights."""

from __future__ import annotations

from profiles.model.figures.transformer import Transformer

TOKEN_WIDTHS = (
    "hidden",
    "query",
    "key",
    "value",
    "core",
    "heads",
    "scores",
    "query_latent",
    "key_value_latent",
    "ffn",
    "routed",
    "routed_expert",
    "shared",
    "router",
    "state_inner",
    "state_shared",
    "vocabulary",
)
WEIGHT_WIDTHS = (
    "bytes",
    "head_weight",
    "attention_in_weights",
    "attention_out_weight",
    "mlp_weights",
    "expert_weights",
    "all_expert_weights",
    "shared_weights",
)
# `parameters` are those of a rank, after tensor, pipeline and expert parallelism.
WIDTHS = (*TOKEN_WIDTHS, *WEIGHT_WIDTHS, "parameters")


def padded_vocabulary(model: Transformer, multiple: int, tp: int) -> int:
    """The vocabulary padded to a multiple of `multiple` times tp (Megatron-LM,
    `_vocab_size_with_padding`); unpadded where `multiple` is 1."""
    step = multiple * tp if multiple > 1 else 1
    return -(-model.vocab_size // step) * step


def token_widths(
    model: Transformer, seq_len: int, vocabulary: int, imbalance: float = 1.0
) -> dict[str, float]:
    """Elements per token of the activations of a layer and of the head, before any split.

    Of the average layer where not all have attention or a feed-forward.
    `core` is the attention's output, `scores` a token's row of every head. `routed` and
    `routed_expert` count every token top_k times, and as often more as the fullest rank's experts
    get tokens beyond the mean (without a capacity that drops them, a rank holds what it is sent:
    Megatron-Core, transformer/moe/token_dispatcher.py).
    """
    x = model.latent
    query = model.head_size if x is None else x.nope_size + x.rope_size
    value = model.head_size if x is None else x.value_size
    key_heads = model.num_kv_heads if x is None else model.num_heads
    mixed, state = model.attention_share, model.state
    return {
        "hidden": model.hidden_size,
        "query": mixed * model.num_heads * query,
        "key": mixed * key_heads * query,
        "value": mixed * key_heads * value,
        "core": mixed * model.num_heads * value,
        "heads": mixed * model.num_heads,
        "scores": mixed * model.num_heads * seq_len,
        "query_latent": 0 if x is None else mixed * x.query_rank,
        "key_value_latent": 0 if x is None else mixed * x.key_value_rank,
        "ffn": model.dense_density * model.ffn_size,
        "routed": imbalance * model.top_k * model.expert_width,
        "routed_expert": imbalance * model.top_k * model.expert_size,
        "shared": model.num_shared_experts * model.expert_size,
        "router": model.num_experts,
        "state_inner": 0 if state is None else model.state_share * state.inner_size,
        "state_shared": 0
        if state is None
        else model.state_share * (state.shared_size + state.gate_size),
        "vocabulary": vocabulary,
    }


def weight_widths(model: Transformer, vocabulary: int) -> dict[str, float]:
    """Elements of whole weights, before any split; `bytes` is one, for what has a fixed size."""
    x = model.latent
    core = model.num_heads * (model.head_size if x is None else x.value_size)
    return {
        "bytes": 1,
        "head_weight": vocabulary * model.hidden_size,
        "attention_in_weights": model.attention_parameters - core * model.hidden_size,
        "attention_out_weight": core * model.hidden_size,
        "mlp_weights": model.dense_parameters,
        "expert_weights": model.expert_parameters,
        "all_expert_weights": model.num_experts * model.expert_parameters,
        "shared_weights": model.shared_expert_parameters,
    }
