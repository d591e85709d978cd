"""`figures_of_config`: a transformer's figures from its Hugging Face configuration, without torch.

Keys and defaults are those of transformers' configuration classes (`LlamaConfig`, `GPT2Config`,
`MixtralConfig`, `Qwen3MoeConfig`, `DeepseekV3Config`, ...). Properties of a model type that are not
in its configuration are in profiles/data/models/model_types.toml; tests build each type and count
its parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiles.document import decode, read_mapping
from profiles.errors import ModelError
from profiles.model.figures.transformer import LatentAttention, StateSpace, Transformer

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
    "predicted_ahead": ("num_nextn_predict_layers", "mtp_num_hidden_layers"),
    "query_rank": ("q_lora_rank",),
    "key_value_rank": ("kv_lora_rank",),
    "nope_size": ("qk_nope_head_dim",),
    "rope_size": ("qk_rope_head_dim",),
    "value_size": ("v_head_dim",),
}
"""Field of Transformer or LatentAttention -> candidate keys of a configuration."""
UNFUSED_GELUS = ("gelu_new", "gelu_fast", "gelu_accurate")
"""Activations written as several ops in transformers 5.23 (activations.py)."""
KINDS_FILE = Path(__file__).parents[2] / "data" / "models" / "model_types.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKind:
    """One model type.

    tied        embeddings are tied by default
    learned     positions are learned
    extra_positions  additional rows of the table of positions
    head_size   default of `head_dim`, 0 for hidden_size / heads
    wide        default of the feed-forward's size over the hidden size
    shared_experts   default number per layer with experts
    global_every     every n-th layer has no window; 1: all layers have one, 0: `sliding_window`
                     alone has no effect
    keys        usual key -> this type's key
    both_ways   an encoder with attention in both directions
    activation  default of `hidden_act`
    hybrid      rule of layers with a recurrence: `mamba` or `delta` (`hybrid_layers`)
    gated_attention  the attention's output is multiplied by a gate
    query_key_norms, special_parts    as in `Transformer`
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
    activation: str = ""
    hybrid: str = ""
    gated_attention: bool = False
    query_key_norms: bool = False
    special_parts: str = ""


CONFIG_KINDS: Mapping[str, ConfigKind] = decode(
    Mapping[str, ConfigKind], read_mapping(KINDS_FILE), where=KINDS_FILE.name
)


def model_type(config: Mapping[str, Any]) -> str:
    """The model type as in CONFIG_KINDS."""
    return str(config.get("model_type", "")).replace("-", "_")


def figures_of_config(config: Mapping[str, Any], where: str) -> Transformer:
    """The figures of a configuration; `where` is its name in errors.

    Keys of `predicted_ahead` count tokens predicted ahead, although transformers builds no layers
    for them. Raises ModelError for a model type that is not in `CONFIG_KINDS`, a missing or
    non-positive key, and layers of several kinds.
    """
    name = model_type(config)
    if name not in CONFIG_KINDS:
        raise ModelError(
            f"{where}: the sizes of model type {name!r} need the model to be built and traced; "
            f"only these are read from a configuration: {', '.join(sorted(CONFIG_KINDS))}"
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
    layers = hybrid_layers(kind.hybrid, config, where) if kind.hybrid else None
    num_layers = layers.num_layers if layers else needed("num_layers")
    experts = given("num_experts")
    dense = given("first_dense_layers") if experts else 0
    if layers and layers.feed_forward_layers:
        dense = layers.dense_layers if experts else 0
        experts = experts if dense < layers.feed_forward_layers else 0
    every = _expert_every(config, where) if experts else 1
    ffn = kind.wide * hidden
    has_dense = not experts or dense or every > 1 or not given("expert_size")
    if has_dense and (not kind.wide or config.get("intermediate_size") is not None):
        ffn = needed("ffn_size")
    expert_size = (given("expert_size") or ffn) if experts else 0
    if not experts:  # GraniteMoeHybrid: the shared experts are the feed-forward
        ffn = int(config.get("shared_intermediate_size") or ffn)
    shared = _shared_experts(config, kind, expert_size, where) if experts else 0
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
        # There `head_dim` is the rotary part only; a query's head has both parts.
        head_size = latent.nope_size + latent.rope_size
    return Transformer(
        num_layers=num_layers,
        hidden_size=hidden,
        ffn_size=ffn if not experts or dense or every > 1 else 0,
        num_heads=heads,
        num_kv_heads=_kv_heads(config, name) or given("num_kv_heads") or heads,
        head_size=head_size,
        vocab_size=needed("vocab_size"),
        gated=kind.gated,
        tied_embeddings=bool(config.get("tie_word_embeddings", kind.tied)),
        num_experts=experts,
        top_k=given("top_k"),
        expert_size=expert_size,
        num_shared_experts=shared,
        first_dense_layers=dense,
        expert_every=every,
        learned_positions=positions if kind.learned else 0,
        biases=kind.biases,
        expert_biases=kind.expert_biases,
        latent=latent,
        window=window,
        window_layers=windowed,
        predicted_ahead=given("predicted_ahead"),
        unfused_gelu=_activation(config, kind) in UNFUSED_GELUS,
        gated_attention=kind.gated_attention,
        query_key_norms=kind.query_key_norms,
        special_parts=kind.special_parts,
        **_recurrent(layers),
    )


def _recurrent(layers: HybridLayers | None) -> dict[str, Any]:
    """Fields of a Transformer with layers that have a recurrence."""
    names = ("state", "state_layers", "attention_layers", "feed_forward_layers", "expert_input")
    return {} if layers is None else {name: getattr(layers, name) for name in names}


def _shared_experts(
    config: Mapping[str, Any], kind: ConfigKind, expert_size: int, where: str
) -> int:
    """Shared experts of the size of the others: from their number, or from their common width."""
    count = next((int(config[key]) for key in KEYS["num_shared_experts"] if config.get(key)), 0)
    count = count or kind.shared_experts
    for key in (
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
    ):
        width = int(config.get(key) or 0)
        if not width:
            continue
        if width % expert_size:
            raise ModelError(
                f"{where}: {key}={width} is not a multiple of the other experts' width "
                f"{expert_size}; "
                "such a model is planned block by block, from package.module:factory"
            )
        count = width // expert_size
    return count


def _activation(config: Mapping[str, Any], kind: ConfigKind) -> str:
    """The activation of the feed-forward; model types differ in the key."""
    keys = ("hidden_act", "activation_function", "hidden_activation")
    return str(next((config[key] for key in keys if config.get(key)), kind.activation))


def _window(config: Mapping[str, Any], kind: ConfigKind) -> tuple[int, int]:
    """The window and the number of layers with it: from `layer_types`, otherwise by the type's rule
    (configuration classes of transformers 5.23); for Qwen the layers from `max_window_layers` on,
    if `use_sliding_window` is set."""
    window = int(config.get("sliding_window") or 0)
    layers = int(config.get("num_hidden_layers") or 0)
    types = config.get("layer_types")
    if not window or config.get("use_sliding_window") is False:
        return 0, 0
    if types:
        count = sum(name in ("sliding_attention", "chunked_attention") for name in types)
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
    """Heads of keys for types with a special rule, otherwise 0."""
    if name == "gpt_bigcode":
        return int(config.get("multi_query", True))
    if name == "falcon" and not config.get("new_decoder_architecture"):
        # Its first architecture reads num_kv_heads only where it is not multi-query.
        return 1 if config.get("multi_query", True) else int(config["num_attention_heads"])
    return 0


def _expert_every(config: Mapping[str, Any], where: str) -> int:
    """Every n-th layer has experts, the last of each n (decoder_sparse_step of Qwen2MoeConfig,
    interleave_moe_layer_step of Llama4TextConfig).

    Raises ModelError for other places of layers with experts.
    """
    layers = int(config.get("num_hidden_layers") or 0)
    every = 1
    for key in ("decoder_sparse_step", "interleave_moe_layer_step"):
        every = max(every, int(config.get(key) or 1))
    places = config.get("moe_layers")
    others = {
        "mlp_only_layers": any(config.get("mlp_only_layers") or ()),
        "moe_layer_freq": config.get("moe_layer_freq") not in (None, 1),
        "moe_layers": places is not None and [*places] != [*range(every - 1, layers, every)],
    }
    for key, mixed in others.items():
        if mixed:
            raise ModelError(
                f"{where}: {key} places dense layers between those with experts in a way that "
                "figures do not describe; such a model is planned block by block, from "
                "package.module:factory"
            )
    return every


# Hybrids mix attention with Mamba-2 (`nemotron_h`) or with the gated delta rule (`qwen3_next`,
# `qwen3_5`). Keys are those of the configuration classes of transformers 5.23.

# Tokens computed together by the kernels of the gated delta rule (fla, ops/gated_delta_rule).
_DELTA_CHUNK = 64
# Characters of `hybrid_override_pattern` and names of `layers_block_type` (NemotronHConfig).
_NEMOTRON_BLOCKS = {
    "M": "mamba",
    "*": "attention",
    "E": "moe",
    "-": "mlp",
    "linear_attention": "mamba",
    "full_attention": "attention",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridLayers:
    """Numbers of layers by kind; each field is that of `Transformer`, with 0 for all layers.

    dense_layers   layers with a dense feed-forward, in a model with experts
    """

    num_layers: int
    state: StateSpace
    state_layers: int
    attention_layers: int = 0
    feed_forward_layers: int = 0
    dense_layers: int = 0
    expert_input: int = 0


def hybrid_layers(rule: str, config: Mapping[str, Any], where: str) -> HybridLayers | None:
    """The layers of a configuration of rule `mamba` or `delta`; None without a recurrence.

    Raises ModelError, with `where`, for missing keys and unknown kinds of layers.
    """
    try:
        return _of_mamba(config, where) if rule == "mamba" else _of_delta(config, where)
    except KeyError as error:
        raise ModelError(f"{where}: {error.args[0]} is missing") from error


def _of_delta(config: Mapping[str, Any], where: str) -> HybridLayers:
    layers = int(config["num_hidden_layers"])
    kinds = config.get("layer_types")
    if kinds is None:
        every = int(config.get("full_attention_interval") or 4)
        kinds = ["full_attention" if (i + 1) % every == 0 else "linear" for i in range(layers)]
    recurrent = sum(kind != "full_attention" for kind in kinds)
    if len(kinds) != layers:
        raise ModelError(
            f"{where}: layer_types has {len(kinds)} entries for num_hidden_layers={layers}"
        )
    return HybridLayers(
        num_layers=layers,
        state=StateSpace(
            rule="delta",
            heads=int(config["linear_num_value_heads"]),
            head_size=int(config["linear_value_head_dim"]),
            state_size=int(config["linear_key_head_dim"]),
            groups=int(config["linear_num_key_heads"]),
            conv_width=int(config.get("linear_conv_kernel_dim") or 4),
            chunk=_DELTA_CHUNK,
        ),
        state_layers=recurrent,
    )


def _of_mamba(config: Mapping[str, Any], where: str) -> HybridLayers | None:
    listed = config.get("layers_block_type") or config["hybrid_override_pattern"]
    kinds = [_NEMOTRON_BLOCKS.get(each, each) for each in listed]
    unknown = sorted(set(kinds) - set(_NEMOTRON_BLOCKS.values()))
    if unknown:
        raise ModelError(
            f"{where}: unknown kind of layer {', '.join(map(repr, unknown))}; known are "
            f"{', '.join(sorted(set(_NEMOTRON_BLOCKS.values())))}"
        )
    if set(kinds) == {"attention"}:
        return None
    if not kinds.count("mamba") or not kinds.count("attention"):
        raise ModelError(f"{where}: a hybrid needs both mamba and attention layers")
    heads, head_size = int(config["mamba_num_heads"]), config["mamba_head_dim"]
    if head_size == "auto":
        head_size = int(config.get("mamba_expand") or 2) * int(config["hidden_size"]) // heads
    return HybridLayers(
        num_layers=len(kinds),
        state=StateSpace(
            rule="ssd",
            heads=heads,
            head_size=int(head_size),
            state_size=int(config["ssm_state_size"]),
            groups=int(config["n_groups"]),
            conv_width=int(config.get("conv_kernel") or 4),
            chunk=int(config.get("chunk_size") or 128),
        ),
        state_layers=kinds.count("mamba"),
        attention_layers=kinds.count("attention"),
        feed_forward_layers=kinds.count("moe") + kinds.count("mlp"),
        dense_layers=kinds.count("mlp"),
        expert_input=int(config.get("moe_latent_size") or 0),
    )
