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

KEYS: Mapping[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers",),
    "hidden_size": ("hidden_size",),
    "ffn_size": ("intermediate_size",),
    "num_heads": ("num_attention_heads",),
    "num_kv_heads": ("num_key_value_heads",),
    "head_size": ("head_dim",),
    "vocab_size": ("vocab_size",),
    "num_experts": ("n_routed_experts", "num_experts", "num_local_experts"),
    "top_k": ("num_experts_per_tok",),
    "expert_size": ("moe_intermediate_size",),
    "num_shared_experts": ("n_shared_experts",),
    "first_dense_layers": ("first_k_dense_replace",),
    "learned_positions": ("max_position_embeddings",),
    "predicted_ahead": ("num_nextn_predict_layers",),
    "query_rank": ("q_lora_rank",),
    "key_value_rank": ("kv_lora_rank",),
    "nope_size": ("qk_nope_head_dim",),
    "rope_size": ("qk_rope_head_dim",),
    "value_size": ("v_head_dim",),
}
"""Figure of Transformer or LatentAttention -> the keys of a configuration that may give it."""
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

    def given(figure: str) -> int:
        return next((int(config[key]) for key in KEYS[figure] if config.get(key)), 0)

    def needed(figure: str) -> int:
        (key,) = KEYS[figure]
        value = config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            own = kind.keys.get(key, key)
            raise ModelError(f"{where}: {own} must be a whole number of 1 or more, is {value!r}")
        return value

    hidden, heads = needed("hidden_size"), needed("num_heads")
    ffn = kind.wide * hidden
    if not kind.wide or config.get("intermediate_size") is not None:
        ffn = needed("ffn_size")
    experts = given("num_experts")
    expert_size = given("expert_size") or (ffn if experts else 0)
    dense = given("first_dense_layers") if experts else 0
    shared = given("num_shared_experts") or (kind.shared_experts if experts else 0)
    if config.get("shared_expert_intermediate_size") and expert_size:
        shared = round(int(config["shared_expert_intermediate_size"]) / expert_size)
    if experts:
        _refuse_mixed_layers(config, where)
    window, windowed = _window(config, kind)
    positions = (given("learned_positions") or 1024) + kind.extra_positions
    head_size, latent = given("head_size") or kind.head_size or hidden // heads, None
    if given("key_value_rank"):
        latent = LatentAttention(
            query_rank=given("query_rank"),
            key_value_rank=needed("key_value_rank"),
            nope_size=needed("nope_size"),
            rope_size=needed("rope_size"),
            value_size=needed("value_size"),
        )
        # `head_dim` is that of the rotary part there: a query's head has both parts.
        head_size = latent.nope_size + latent.rope_size
    return Transformer(
        num_layers=needed("num_layers"),
        hidden_size=hidden,
        ffn_size=ffn if not experts or dense else 0,
        num_heads=heads,
        num_kv_heads=_kv_heads(config, name) or given("num_kv_heads") or heads,
        head_size=head_size,
        vocab_size=needed("vocab_size"),
        gated=kind.gated,
        tied_embeddings=bool(config.get("tie_word_embeddings", kind.tied)),
        num_experts=experts,
        top_k=given("top_k"),
        expert_size=expert_size if experts else 0,
        num_shared_experts=shared,
        first_dense_layers=dense,
        learned_positions=positions if kind.learned else 0,
        biases=kind.biases,
        expert_biases=kind.expert_biases,
        latent=latent,
        window=window,
        window_layers=windowed,
        predicted_ahead=given("predicted_ahead"),
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


def _kv_heads(config: Mapping[str, Any], name: str) -> int:
    """Heads of keys where the type has a rule of its own, else 0."""
    if name == "gpt_bigcode":
        return int(config.get("multi_query", True))
    if name == "falcon" and not config.get("new_decoder_architecture"):
        # Its first architecture reads num_kv_heads only where it is not multi-query.
        return 1 if config.get("multi_query", True) else int(config["num_attention_heads"])
    return 0


def _refuse_mixed_layers(config: Mapping[str, Any], where: str) -> None:
    if any(config.get("mlp_only_layers") or ()):
        raise ModelError(f"{where}: mlp_only_layers mixes dense layers between those with experts")
    for key in ("decoder_sparse_step", "interleave_moe_layer_step"):
        if int(config.get(key) or 1) > 1:
            raise ModelError(f"{where}: {key} mixes dense layers between those with experts")
