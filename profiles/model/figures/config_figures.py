"""`figures_of_config`: a transformer's figures from its Hugging Face configuration, without torch.

Keys are those of transformers' configuration classes (`LlamaConfig`, `GPT2Config`, `MixtralConfig`,
`Qwen3MoeConfig`, `DeepseekV3Config`, ...), with their defaults if a key is optional. `CONFIG_KINDS`
holds what a model type implies if its configuration is silent, read off the configuration and
modelling classes of transformers 5.23 (models/<type>/), 2026-11-21: the default of
`tie_word_embeddings`, gated feed-forwards, biases of linear layers, learned positions, and keys
that differ from the usual ones. Only types of which every layer is attention and one feed-forward,
dense or of experts; tests build and count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from profiles.errors import ModelError
from profiles.model.figures.transformer import LatentAttention, Transformer


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


_GPT_KEYS = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
}
# A window that is given holds in every layer (ConfigKind.global_every).
_EVERY = 1
_GATED = ConfigKind()
_WINDOWED = ConfigKind(global_every=_EVERY)
_GATED_TIED = ConfigKind(tied=True)
_GEMMA = ConfigKind(tied=True, head_size=256)
_BERT = ConfigKind(gated=False, tied=True, biases=True, learned=True)
_GPT2 = ConfigKind(gated=False, tied=True, biases=True, learned=True, wide=4, keys=_GPT_KEYS)
_PLAIN = ConfigKind(gated=False)

# Encoders: a token's attention meets those behind it too.
BOTH_WAYS = frozenset({"bert", "roberta", "xlm_roberta", "camembert", "distilbert", "modernbert"})

CONFIG_KINDS: Mapping[str, ConfigKind] = {
    "llama": _GATED,
    "llama4_text": ConfigKind(head_size=128, shared_experts=1),
    "mistral": _WINDOWED,
    "ministral": _WINDOWED,
    "mixtral": _WINDOWED,
    "qwen2": _GATED,
    "qwen3": _GATED,
    "qwen2_moe": _GATED,
    "qwen3_moe": _GATED,
    "deepseek_v2": _GATED,
    "deepseek_v3": _GATED,
    "kimi_k2": _GATED,
    "gemma": _GEMMA,
    "gemma2": ConfigKind(tied=True, head_size=256, global_every=2),
    "gemma3_text": ConfigKind(tied=True, head_size=256, global_every=6),
    "phi3": _WINDOWED,
    "phi": ConfigKind(gated=False, biases=True),
    "olmo": _GATED,
    "olmo2": _GATED,
    "olmo3": ConfigKind(global_every=4),
    "olmoe": _GATED,
    "granite": _GATED,
    "granitemoe": _GATED,
    "cohere": _GATED_TIED,
    "cohere2": ConfigKind(tied=True, global_every=4),
    "glm": ConfigKind(head_size=128),
    "glm4": ConfigKind(head_size=128),
    "glm4_moe": _GATED,
    "gpt_oss": ConfigKind(head_size=64, global_every=2, expert_biases=True),
    "minimax_m2": ConfigKind(head_size=128),
    "stablelm": _GATED,
    "smollm3": _GATED_TIED,
    "seed_oss": ConfigKind(head_size=128),
    "exaone4": _GATED,
    "ernie4_5": ConfigKind(tied=True, head_size=128),
    "arcee": _PLAIN,
    "nemotron": _PLAIN,
    "starcoder2": ConfigKind(gated=False, tied=True, biases=True, global_every=1),
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "gptj": ConfigKind(gated=False, wide=4, keys=_GPT_KEYS),
    "gpt_neox": ConfigKind(gated=False, biases=True),
    "opt": ConfigKind(
        gated=False,
        tied=True,
        biases=True,
        learned=True,
        extra_positions=2,
        keys={"intermediate_size": "ffn_dim"},
    ),
    "bloom": ConfigKind(
        gated=False,
        tied=True,
        biases=True,
        wide=4,
        keys={"num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
    ),
    "falcon": ConfigKind(
        gated=False,
        tied=True,
        wide=4,
        keys={"num_key_value_heads": "num_kv_heads", "intermediate_size": "ffn_hidden_size"},
    ),
    "mpt": ConfigKind(
        gated=False,
        tied=True,
        wide=4,
        keys={
            "hidden_size": "d_model",
            "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers",
        },
    ),
    "bert": _BERT,
    "roberta": _BERT,
    "xlm_roberta": _BERT,
    "camembert": _BERT,
    "distilbert": ConfigKind(
        gated=False,
        tied=True,
        biases=True,
        learned=True,
        keys={
            "hidden_size": "dim",
            "intermediate_size": "hidden_dim",
            "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers",
        },
    ),
    "modernbert": _GATED_TIED,
}


def known_type(config: Mapping[str, Any]) -> bool:
    """Whether configurations of this model type are read without tracing."""
    return _type_of(config) in CONFIG_KINDS


def figures_of_config(config: Mapping[str, Any], where: str) -> Transformer:
    """The figures of a configuration; `where` names it in errors.

    Tokens predicted ahead are those of `num_nextn_predict_layers`, though transformers builds no
    layers for them.
    Raises ModelError for a model type that `CONFIG_KINDS` does not have, for a missing or
    non-positive key, and for layers that differ in kind.
    """
    name = _type_of(config)
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
        learned_positions=_learned_positions(config, kind),
        biases=kind.biases,
        expert_biases=kind.expert_biases,
        latent=latent,
        window=window,
        window_layers=windowed,
        predicted_ahead=int(config.get("num_nextn_predict_layers") or 0),
    )


def _type_of(config: Mapping[str, Any]) -> str:
    return str(config.get("model_type", "")).replace("-", "_")


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


def _learned_positions(config: Mapping[str, Any], kind: ConfigKind) -> int:
    if not kind.learned:
        return 0
    return int(config.get("max_position_embeddings") or 1024) + kind.extra_positions


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
