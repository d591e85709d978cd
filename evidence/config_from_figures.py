"""`config_of_figures`: a transformers configuration for a model of given figures.

The inverse of figures_from_config.py: the architecture follows from the properties of the figures
(biases, learned positions, a gated feed-forward, experts, latent attention), so that a described
model can be built and traced. Keys of transformers 5.23 (models/<type>/, 2026-11-22).
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from profiles.errors import ModelError
from profiles.model.figures.figures_from_config import CONFIG_KINDS, KEYS
from profiles.model.figures.transformer import LatentAttention, Transformer

# Rotary positions and ALiBi have no limit; the builder refuses longer sequences.
_POSITIONS = 1 << 20
_NEW = ("head_dim", "num_key_value_heads")


def config_of_figures(figures: Transformer, num_layers: int) -> dict[str, Any]:
    """The configuration of a model with these figures, another number of layers and no windows.

    Raises ModelError if no architecture of transformers has all properties.
    """
    for what, has in (
        ("layers with a state", figures.state is not None),
        ("layers without attention or feed-forward", not figures.is_even),
        ("experts of another width than the model", bool(figures.expert_input)),
        ("dense layers between those with experts", figures.expert_every > 1),
        ("attention with a gate", figures.gated_attention),
    ):
        if has:
            raise ModelError(f"no architecture is known to build {what} from figures alone")
    usual = _keys(figures, "hidden_size", "ffn_size", "num_heads", "num_kv_heads", "head_size")
    usual |= {"num_hidden_layers": num_layers, "max_position_embeddings": _POSITIONS}
    if figures.num_experts:
        return _with_experts(figures, usual)
    gated, biases, learned = figures.gated, figures.biases, bool(figures.learned_positions)
    heads, kv_heads = figures.num_heads, figures.num_kv_heads
    plain = heads * figures.head_size == figures.hidden_size
    why = ""
    if learned and (gated or not biases):
        why = "gated feed-forwards" if gated else "layers without biases"
    elif learned and not plain:
        why = f"{heads} heads of {figures.head_size} at a hidden size of {figures.hidden_size}"
    elif learned and kv_heads not in (1, heads):
        why = f"{kv_heads} heads of keys for {heads} of queries"
    if why:
        raise ModelError(f"no architecture of transformers has learned positions and {why}")
    if gated:
        usual |= {"attention_bias": biases, "mlp_bias": biases}
        return _named("LlamaForCausalLM", "llama", usual, figures)
    if learned:
        usual["max_position_embeddings"] = figures.learned_positions
        usual["activation_function"] = "gelu_new" if figures.unfused_gelu else "gelu"
        if kv_heads == heads:
            return _named("GPT2LMHeadModel", "gpt2", usual, figures)
        usual["multi_query"] = True
        return _named("GPTBigCodeForCausalLM", "gpt_bigcode", usual, figures)
    if not biases:
        return _named("ArceeForCausalLM", "arcee", usual, figures)
    if not plain or kv_heads != heads:
        return _named("Starcoder2ForCausalLM", "starcoder2", usual, figures)
    if figures.ffn_size != 4 * figures.hidden_size:
        raise ModelError(f"BLOOM's feed-forward is 4 times as wide, not {figures.ffn_size}")
    return _named("BloomForCausalLM", "bloom", usual, figures)


def _named(name: str, kind: str, keys: dict[str, Any], figures: Transformer) -> dict[str, Any]:
    """The configuration, with the keys of its model type."""
    own = CONFIG_KINDS[kind].keys
    if own:  # older types have neither
        keys = {own.get(key, key): keys[key] for key in keys if key not in _NEW}
    return {
        "architectures": [name],
        "model_type": kind,
        "vocab_size": figures.vocab_size,
        "tie_word_embeddings": figures.tied_embeddings,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
    } | keys


def _keys(figures: Transformer | LatentAttention, *names: str) -> dict[str, Any]:
    """The figures of these names by the keys of a configuration."""
    return {KEYS[name][0]: getattr(figures, name) for name in names}


def _with_experts(figures: Transformer, usual: dict[str, Any]) -> dict[str, Any]:
    if not figures.gated or figures.biases or figures.learned_positions:
        raise ModelError("no architecture is known to build such experts from figures alone")
    keys = usual | _keys(figures, "top_k")
    if figures.latent is not None:
        counts = ("expert_size", "num_experts", "num_shared_experts", "first_dense_layers")
        keys |= _keys(figures, *counts)
        keys |= _keys(figures.latent, *(f.name for f in fields(LatentAttention)))
        keys |= {
            "intermediate_size": figures.ffn_size or figures.expert_size,
            "n_group": 1,
            "topk_group": 1,
            "q_lora_rank": figures.latent.query_rank or None,
        }
        del keys["head_dim"]
        return _named("DeepseekV3ForCausalLM", "deepseek_v3", keys, figures)
    if figures.num_shared_experts or figures.first_dense_layers:
        raise ModelError(
            "no architecture is known to build shared experts or first dense layers from figures "
            "alone, without latent attention"
        )
    keys |= {"num_local_experts": figures.num_experts, "intermediate_size": figures.expert_size}
    return _named("MixtralForCausalLM", "mixtral", keys | {"sliding_window": None}, figures)
