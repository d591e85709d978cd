"""Layers with a recurrence in the configuration of a hybrid: their state and the numbers of layers.

Hybrids mix attention with Mamba-2 (`nemotron_h`) or with the gated delta rule (`qwen3_next`,
`qwen3_5`). Keys are those of the configuration classes of transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from profiles.errors import ModelError
from profiles.model.figures.transformer import StateSpace

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


def hybrid_layers(rule: str, config: Mapping[str, Any], where: str) -> HybridLayers:
    """The layers of a configuration of rule `mamba` or `delta`.

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


def _of_mamba(config: Mapping[str, Any], where: str) -> HybridLayers:
    listed = config.get("layers_block_type") or config["hybrid_override_pattern"]
    kinds = [_NEMOTRON_BLOCKS.get(each, each) for each in listed]
    unknown = sorted(set(kinds) - set(_NEMOTRON_BLOCKS.values()))
    if unknown:
        raise ModelError(
            f"{where}: unknown kind of layer {', '.join(map(repr, unknown))}; known are "
            f"{', '.join(sorted(set(_NEMOTRON_BLOCKS.values())))}"
        )
    if not kinds.count("mamba") or not kinds.count("attention"):
        raise ModelError(f"{where}: a hybrid needs both mamba and attention layers")
    return HybridLayers(
        num_layers=len(kinds),
        state=StateSpace(
            rule="ssd",
            heads=int(config["mamba_num_heads"]),
            head_size=int(config["mamba_head_dim"]),
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
