"""Values of a model's configuration in addition to its figures: activation, positions, norms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profiles.model.figures.transformer import Transformer
from shardwright_frameworks.exports.values.planned_run import PlannedRun

_QUERY_NORMS = ("qwen3", "qwen3_moe", "olmo2", "olmo3")


def number(config: Mapping[str, Any], *keys: str, usual: float) -> float:
    """The number under the first of the keys in the configuration, or the usual value."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    return usual


def rope_theta(planned: PlannedRun) -> float:
    """Base of the rotary positions; 10,000 (RoFormer, arXiv 2104.09864) by default."""
    inner = planned.config.get("rope_parameters")
    found = number(inner, "rope_theta", usual=0.0) if isinstance(inner, Mapping) else 0.0
    return found or number(planned.config, "rope_theta", usual=10_000.0)


def norm_epsilon(planned: PlannedRun) -> float:
    """Epsilon of the norms; 1e-5 by default."""
    return number(
        planned.config, "rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", usual=1e-5
    )


def norms_queries(planned: PlannedRun) -> bool:
    """Whether queries and keys are normalized."""
    return str(planned.config.get("model_type", "")).replace("-", "_") in _QUERY_NORMS


def is_plain_llama(model: Transformer) -> bool:
    """Whether all layers are Llama's: gated, no biases, rotary positions, full attention."""
    return not (
        model.biases
        or not model.gated
        or model.learned_positions
        or model.latent
        or model.window_layers
        or model.state
        or not model.is_even
        or model.expert_every > 1
        or model.predicted_ahead
    )


def layer_class(planned: PlannedRun) -> str:
    """transformers' class of a layer, which FSDP wraps; "" if the configuration names none."""
    known = {
        "llama": "LlamaDecoderLayer",
        "mistral": "MistralDecoderLayer",
        "mixtral": "MixtralDecoderLayer",
        "qwen2": "Qwen2DecoderLayer",
        "qwen3": "Qwen3DecoderLayer",
        "qwen3_moe": "Qwen3MoeDecoderLayer",
        "deepseek_v3": "DeepseekV3DecoderLayer",
        "gpt2": "GPT2Block",
        "gpt_neox": "GPTNeoXLayer",
        "opt": "OPTDecoderLayer",
        "bloom": "BloomBlock",
        "falcon": "FalconDecoderLayer",
        "phi3": "Phi3DecoderLayer",
        "gemma": "GemmaDecoderLayer",
        "gemma2": "Gemma2DecoderLayer",
        "olmo2": "Olmo2DecoderLayer",
    }
    return known.get(str(planned.config.get("model_type", "")).replace("-", "_"), "")
