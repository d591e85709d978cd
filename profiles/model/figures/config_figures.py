"""`figures_of_config`: a transformer's figures from its Hugging Face configuration, without torch.

Keys are those of transformers' configuration classes (`LlamaConfig`, `GPT2Config`, `MixtralConfig`,
`Qwen3MoeConfig`, `DeepseekV3Config`, ...), with their defaults if a key is optional. What a model
type implies if its configuration is silent is in profiles/data/models/model_types.toml; tests build
and count each type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiles.document import decode, read_mapping
from profiles.errors import ModelError
from profiles.model.figures.transformer import LatentAttention, Transformer

KINDS_FILE = Path(__file__).parents[2] / "data" / "models" / "model_types.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKind:
    """One model type.

    tied        embeddings are tied where the configuration does not say
    learned     positions are learned; extra_positions  rows of their table beyond the positions
    head_size   where `head_dim` is silent, 0 for hidden_size / heads
    wide        the feed-forward is so many times the hidden size where no key gives it
    shared_experts   of a layer with experts, where no key says how many
    global_every     of layers with a window every so many-th has none, 1 for all with one, 0 where
                     `sliding_window` alone means nothing
    keys        usual key -> this type's key
    both_ways   an encoder: a token's attention meets those behind it, too
    """

    gated: bool = True
    tied: bool = False
    biases: bool = False
    expert_biases: bool = False
    learned: bool = False
    extra_positions: int = 0
    head_size: int = 0
    wide: int = 0
    keys: Mapping[str, str] = field(default_factory=dict)
    shared_experts: int = 0
    global_every: int = 0
    both_ways: bool = False


CONFIG_KINDS: Mapping[str, ConfigKind] = decode(
    Mapping[str, ConfigKind], read_mapping(KINDS_FILE), where=KINDS_FILE.name
)


def model_type(config: Mapping[str, Any]) -> str:
    """The model type as CONFIG_KINDS spells it."""
    return str(config.get("model_type", "")).replace("-", "_")


def figures_of_config(config: Mapping[str, Any], where: str) -> Transformer:
    """The figures of a configuration; `where` names it in errors.

    Tokens predicted ahead are those of `num_nextn_predict_layers`, though transformers builds no
    layers for them.
    Raises ModelError for a model type that `CONFIG_KINDS` does not have, for a missing or
    non-positive key, and for layers that differ in kind.
    """
    name = model_type(config)
    if name not in CONFIG_KINDS:
        raise ModelError(
            f"{where}: configurations of model type {name!r} are not read without building the "
            f"model; those that are: {', '.join(sorted(CONFIG_KINDS))}"
        )
    kind = CONFIG_KINDS[name]
    config = {**config} | {
        usual: config[own] for usual, own in kind.keys.items() if config.get(own) is not None
    }
    hidden = _count(config, "hidden_size", where, kind)
    heads = _count(config, "num_attention_heads", where, kind)
    ffn = kind.wide * hidden
    if not kind.wide or config.get("intermediate_size") is not None:
        ffn = _count(config, "intermediate_size", where, kind)
    experts = int(config.get("n_routed_experts") or config.get("num_experts") or 0)
    experts = experts or int(config.get("num_local_experts") or 0)
    expert_size = int(config.get("moe_intermediate_size") or (ffn if experts else 0))
    dense = int(config.get("first_k_dense_replace") or 0) if experts else 0
    shared = int(config.get("n_shared_experts") or (kind.shared_experts if experts else 0))
    if config.get("shared_expert_intermediate_size") and expert_size:
        shared = round(int(config["shared_expert_intermediate_size"]) / expert_size)
    if experts:
        _refuse_mixed_layers(config, where)
    window, windowed = _window(config, kind)
    positions = int(config.get("max_position_embeddings") or 1024) + kind.extra_positions
    latent = _latent(config, where) if config.get("kv_lora_rank") else None
    head_size = int(config.get("head_dim") or kind.head_size or hidden // heads)
    if latent is not None:
        # `head_dim` is that of the rotary part there: a query's head has both parts.
        head_size = latent.nope_size + latent.rope_size
    return Transformer(
        num_layers=_count(config, "num_hidden_layers", where, kind),
        hidden_size=hidden,
        ffn_size=ffn if not experts or dense else 0,
        num_heads=heads,
        num_kv_heads=_kv_heads(config, name, heads),
        head_size=head_size,
        vocab_size=_count(config, "vocab_size", where, kind),
        gated=kind.gated,
        tied_embeddings=bool(config.get("tie_word_embeddings", kind.tied)),
        num_experts=experts,
        top_k=int(config.get("num_experts_per_tok") or 0),
        expert_size=expert_size if experts else 0,
        num_shared_experts=shared,
        first_dense_layers=dense,
        learned_positions=positions if kind.learned else 0,
        biases=kind.biases,
        expert_biases=kind.expert_biases,
        latent=latent,
        window=window,
        window_layers=windowed,
        predicted_ahead=int(config.get("num_nextn_predict_layers") or 0),
    )


def _window(config: Mapping[str, Any], kind: ConfigKind) -> tuple[int, int]:
    """The window and the layers that have it: `layer_types` says which, else the type's own rule
    (the configuration classes of transformers 5.23); Qwen's from `max_window_layers` on, and only
    where `use_sliding_window` says so."""
    window = int(config.get("sliding_window") or 0)
    layers = int(config.get("num_hidden_layers") or 0)
    types = config.get("layer_types")
    if not window or config.get("use_sliding_window") is False:
        return 0, 0
    if types:
        count = sum(name == "sliding_attention" for name in types)
    elif config.get("use_sliding_window"):
        count = max(0, layers - int(config.get("max_window_layers") or 0))
    elif kind.global_every == 1:
        count = layers
    elif kind.global_every:
        every = int(config.get("sliding_window_pattern") or kind.global_every)
        count = layers - layers // every
    else:
        return 0, 0
    return (window, count) if count else (0, 0)


def _kv_heads(config: Mapping[str, Any], name: str, heads: int) -> int:
    if name == "gpt_bigcode" and config.get("multi_query", True):
        return 1
    if name == "falcon" and not config.get("new_decoder_architecture"):
        # Its first architecture reads num_kv_heads only where it is not multi-query.
        return 1 if config.get("multi_query", True) else heads
    return int(config.get("num_key_value_heads") or heads)


def _refuse_mixed_layers(config: Mapping[str, Any], where: str) -> None:
    if any(config.get("mlp_only_layers") or ()):
        raise ModelError(f"{where}: mlp_only_layers mixes dense layers between those with experts")
    for key in ("decoder_sparse_step", "interleave_moe_layer_step"):
        if int(config.get(key) or 1) > 1:
            raise ModelError(f"{where}: {key} mixes dense layers between those with experts")


def _latent(config: Mapping[str, Any], where: str) -> LatentAttention:
    return LatentAttention(
        query_rank=int(config.get("q_lora_rank") or 0),
        key_value_rank=_count(config, "kv_lora_rank", where),
        nope_size=_count(config, "qk_nope_head_dim", where),
        rope_size=_count(config, "qk_rope_head_dim", where),
        value_size=_count(config, "v_head_dim", where),
    )


def _count(config: Mapping[str, Any], key: str, where: str, kind: ConfigKind | None = None) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        own = kind.keys.get(key, key) if kind is not None else key
        raise ModelError(f"{where}: {own} must be a whole number of 1 or more, is {value!r}")
    return value
