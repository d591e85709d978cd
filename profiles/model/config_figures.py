"""`figures_of_config`: a transformer's figures from its Hugging Face configuration, without torch.

Keys are those of transformers' configuration classes (`LlamaConfig`, `GPT2Config`, `MixtralConfig`,
`Qwen3MoeConfig`, `DeepseekV3Config`), with their defaults where a key is optional.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profiles.errors import ModelError
from profiles.model.transformer import LatentAttention, Transformer

# Model types of which every layer is attention and a feed-forward, gated by SiLU or GELU.
_GATED = (
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen2_moe",
    "qwen3_moe",
    "deepseek_v3",
    "gemma",
    "phi3",
)
_PLAIN = ("gpt2", "bert", "gpt_neox", "opt")


def figures_of_config(config: Mapping[str, Any], where: str) -> Transformer:
    """The figures of a configuration; `where` names it in errors.

    Raises ModelError for a model type that is not a chain of transformer layers (encoder-decoders,
    vision, state-space models) and for a missing or non-positive key.
    """
    kind = str(config.get("model_type", ""))
    if kind not in _GATED + _PLAIN:
        raise ModelError(
            f"{where}: model type {kind!r} cannot be described by a transformer's figures; known "
            f"are {', '.join(sorted(_GATED + _PLAIN))}. Without --stack the model is traced."
        )
    if kind == "gpt2":
        return _gpt2(config, where)
    hidden = _count(config, "hidden_size", where)
    heads = _count(config, "num_attention_heads", where)
    experts = int(config.get("n_routed_experts") or config.get("num_experts") or 0)
    experts = experts or int(config.get("num_local_experts") or 0)
    latent = _latent(config, where) if config.get("kv_lora_rank") else None
    layers = _count(config, "num_hidden_layers", where)
    ffn = _count(config, "intermediate_size", where)
    expert_size = int(config.get("moe_intermediate_size") or (ffn if experts else 0))
    dense = int(config.get("first_k_dense_replace") or 0) if experts else 0
    shared = int(config.get("n_shared_experts") or 0)
    if config.get("shared_expert_intermediate_size") and expert_size:
        shared = round(int(config["shared_expert_intermediate_size"]) / expert_size)
    if experts and any(config.get("mlp_only_layers") or ()):
        raise ModelError(f"{where}: mlp_only_layers mixes dense layers between those with experts")
    return Transformer(
        num_layers=layers,
        hidden_size=hidden,
        ffn_size=ffn if not experts or dense else 0,
        num_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_size=int(config.get("head_dim") or hidden // heads),
        vocab_size=_count(config, "vocab_size", where),
        gated=kind in _GATED,
        tied_embeddings=bool(config.get("tie_word_embeddings", kind in ("bert", "gemma"))),
        num_experts=experts,
        top_k=int(config.get("num_experts_per_tok") or 0),
        expert_size=expert_size if experts else 0,
        num_shared_experts=shared,
        first_dense_layers=dense,
        learned_positions=int(config.get("max_position_embeddings") or 0) if kind == "bert" else 0,
        biases=kind in _PLAIN,
        latent=latent,
    )


def _gpt2(config: Mapping[str, Any], where: str) -> Transformer:
    hidden, heads = _count(config, "n_embd", where), _count(config, "n_head", where)
    return Transformer(
        num_layers=_count(config, "n_layer", where),
        hidden_size=hidden,
        ffn_size=int(config.get("n_inner") or 4 * hidden),
        num_heads=heads,
        num_kv_heads=heads,
        head_size=hidden // heads,
        vocab_size=_count(config, "vocab_size", where),
        gated=False,
        tied_embeddings=bool(config.get("tie_word_embeddings", True)),
        learned_positions=int(config.get("n_positions") or 1024),
        biases=True,
    )


def _latent(config: Mapping[str, Any], where: str) -> LatentAttention:
    return LatentAttention(
        query_rank=int(config.get("q_lora_rank") or 0),
        key_value_rank=_count(config, "kv_lora_rank", where),
        nope_size=_count(config, "qk_nope_head_dim", where),
        rope_size=_count(config, "qk_rope_head_dim", where),
        value_size=_count(config, "v_head_dim", where),
    )


def _count(config: Mapping[str, Any], key: str, where: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{where}: {key} must be a whole number of 1 or more, is {value!r}")
    return value
