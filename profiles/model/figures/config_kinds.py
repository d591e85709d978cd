"""`CONFIG_KINDS`: what a Hugging Face model type means where its configuration is silent.

Read off the configuration and modelling classes of transformers 5.23 (models/<type>/), 2026-11-21:
the default of `tie_word_embeddings`, whether the feed-forward is gated, whether linear layers have
biases, whether positions are learned, and the keys that differ from the usual ones. Only types of
which every layer is attention and one feed-forward, dense or of experts; tests build and count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
