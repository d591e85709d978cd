"""How wide the tensors of a run are: elements per token, and elements of whole weights."""

from __future__ import annotations

from profiles.model.transformer import Transformer


def padded_vocabulary(model: Transformer, multiple: int, tp: int) -> int:
    """The vocabulary padded to a multiple of `multiple` times tp (Megatron-LM,
    megatron/training/tokenizer: `_vocab_size_with_padding`); unpadded where `multiple` is 1."""
    step = multiple * tp if multiple > 1 else 1
    return -(-model.vocab_size // step) * step


def token_widths(model: Transformer, seq_len: int, vocabulary: int) -> dict[str, float]:
    """Elements per token of the activations of a layer and of the head, before any split.

    `routed` and `routed_expert` count every token top_k times: experts that are equally loaded, or
    a capacity factor of one.
    """
    x = model.latent
    query = model.head_size if x is None else x.nope_size + x.rope_size
    value = model.head_size if x is None else x.value_size
    kv_heads = model.num_kv_heads if x is None else model.num_heads
    return {
        "hidden": model.hidden_size,
        "query": model.num_heads * query,
        "key": kv_heads * query,
        "value": kv_heads * value,
        "core": model.num_heads * value,
        "heads": model.num_heads,
        "scores": model.num_heads * seq_len,
        "query_latent": 0 if x is None else x.query_rank,
        "key_value_latent": 0 if x is None else x.key_value_rank,
        "ffn": model.ffn_size,
        "routed": model.top_k * model.hidden_size,
        "routed_expert": model.top_k * model.expert_size,
        "shared": model.num_shared_experts * model.expert_size,
        "router": model.num_experts,
        "token": 1,
        "vocabulary": vocabulary,
    }


def weight_widths(model: Transformer, vocabulary: int) -> dict[str, float]:
    """Elements of whole weights, before any split."""
    h, x = model.hidden_size, model.latent
    core = model.num_heads * (model.head_size if x is None else x.value_size)
    both = 2 if model.gated else 1
    return {
        "bytes": 1,
        "head_weight": vocabulary * h,
        "attention_in_weights": model.attention_parameters - core * h,
        "attention_out_weight": core * h,
        "mlp_weights": (both + 1) * h * model.ffn_size,
        "expert_weights": (both + 1) * h * model.expert_size,
        "shared_weights": (both + 1) * h * model.expert_size * model.num_shared_experts,
    }
