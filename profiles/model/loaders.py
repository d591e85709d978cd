"""Resolve the name of a model, without torch.

A model is a shipped name (`llama-3.1-70b`, also `meta-llama/Llama-3.1-70B`), the path of a Hugging
Face `config.json`, or `package.module:factory`. Only the last imports user code, when the model is
built.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiles.document import content_hash, read_mapping
from profiles.errors import ModelError, UnknownNameError
from profiles.extras import need_package

MODEL_FOLDER = Path(__file__).parents[1] / "data" / "models"

# End of an architecture's name -> family, which decides inputs and loss (build_feeds.py).
FAMILIES = {
    "ForCausalLM": "causal",
    "LMHeadModel": "causal",
    "ForMaskedLM": "masked",
    "ForSequenceClassification": "sequence",
    "ForAudioClassification": "sequence",
    "ForTokenClassification": "tokens",
    "ForQuestionAnswering": "spans",
    "ForImageClassification": "vision",
    "ForSemanticSegmentation": "pixels",
    "ForConditionalGeneration": "seq2seq",
    "MTModel": "seq2seq",
    "CLIPModel": "pairs",
    "SiglipModel": "pairs",
}
# Families that are built with all towers.
_TOWERS = ("pairs", "vision")
# Tasks whose loss depends on values, so that it cannot be traced on shapes.
_LOSS_BY_VALUES = {
    "ForObjectDetection": "matches boxes to objects",
    "ForInstanceSegmentation": "matches masks to objects",
    "ForUniversalSegmentation": "matches masks to objects",
    "ForCTC": "sums over alignments of labels of unknown length",
}
_FACTORY = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
_ALIASES = {
    "meta-llama/llama-3.1-8b": "llama-3.1-8b",
    "meta-llama/llama-3.1-70b": "llama-3.1-70b",
    "meta-llama/llama-3.1-405b": "llama-3.1-405b",
    "openai-community/gpt2": "gpt2",
    "mistralai/mixtral-8x7b-v0.1": "mixtral-8x7b",
    "qwen/qwen3-235b-a22b": "qwen3-235b-a22b",
    "deepseek-ai/deepseek-v3": "deepseek-v3",
    "google-bert/bert-large-uncased": "bert-large",
    "google-t5/t5-large": "t5-large",
    "google/vit-huge-patch14-224-in21k": "vit-huge",
    "openai/whisper-large": "whisper-large",
    "state-spaces/mamba2-2.7b": "mamba2-2.7b",
}


GIVEN = " (given in Python)"
"""End of the name of a model that was given as an object."""

HEAD_COUNTS = (
    "num_attention_heads",
    "num_key_value_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "n_head",
)
"""Keys of a transformers configuration with the number of attention heads."""


def uneven_heads(spec: ModelSpec, tp: int) -> str:
    """Why tp does not divide the configuration's attention heads, or ""."""
    for key in HEAD_COUNTS:
        heads = spec.config.get(key)
        if isinstance(heads, int) and heads % tp:
            divisors = [n for n in range(1, heads + 1) if heads % n == 0]
            return f"tp={tp} does not divide {key}={heads}; use one of {divisors}"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model that can be built.

    name     for display; source  the user's file, shipped name or factory
    config   the HF configuration, empty for a factory
    factory  `package.module:function`, or "" for an HF configuration
    """

    name: str
    source: str
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    factory: str = ""

    @property
    def family(self) -> str:
        """One of FAMILIES' values, or `factory`."""
        return "factory" if self.factory else _family(self.config, self.source)

    @property
    def content_hash(self) -> str:
        """Hash of the configuration or the factory's name (not of its code)."""
        return content_hash({"config": dict(self.config), "factory": self.factory})


def need_to_build(spec: ModelSpec) -> None:
    """Raises InputError if a package is missing that builds and traces the model."""
    needed = ("torch",) if spec.factory else ("torch", "transformers")
    for package in needed:
        need_package(package, f"tracing {spec.source}", extra="" if spec.factory else "hf")


def model_names() -> tuple[str, ...]:
    """The shipped names."""
    return tuple(sorted(path.stem for path in MODEL_FOLDER.glob("*.json")))


def model_named(text: str) -> str | None:
    """The shipped model with this name or alias, or None."""
    name = _ALIASES.get(text.lower(), text.lower())
    return name if name in model_names() else None


def resolve_model(text: str) -> ModelSpec:
    """The model of a name, path or factory.

    Raises ModelError for an unknown name and for a configuration with an unsupported architecture
    or invalid sizes, DocumentError for a file that is no JSON.
    """
    if _FACTORY.match(text):
        return ModelSpec(name=text, source=text, factory=text)
    if Path(text).is_dir() and model_named(text) is None:
        # A checkpoint's folder, as transformers takes it.
        inside = Path(text) / "config.json"
        if not inside.is_file():
            raise ModelError(
                f"{text}: is a folder without a config.json; give a checkpoint's folder, the path "
                "of a config.json, or package.module:factory"
            )
        text = str(inside)
    if text.endswith(".json") or Path(text).is_file():
        config = read_mapping(text)
        folder = Path(text).resolve().parent.name
        name = str(config.get("_name_or_path") or folder or Path(text).stem)
        return _checked(ModelSpec(name=name, source=text, config=config))
    shipped = model_named(text)
    if shipped is None:
        unknown = UnknownNameError("model", text, model_names())
        raise ModelError(
            f"{unknown} Or pass the path of the model's config.json, or package.module:factory; "
            "nothing is downloaded."
        )
    entry = read_mapping(MODEL_FOLDER / f"{shipped}.json")
    return _checked(ModelSpec(name=shipped, source=shipped, config=entry["config"]))


def _family(config: Mapping[str, Any], source: str) -> str:
    architectures = config.get("architectures") or []
    if not isinstance(architectures, (list, tuple)) or not architectures:
        raise ModelError(
            f"{source}: 'architectures' is missing, so it is unknown what to build; add for "
            'example "architectures": ["LlamaForCausalLM"]'
        )
    name = str(architectures[0])
    found = next((family for suffix, family in FAMILIES.items() if name.endswith(suffix)), "")
    if found not in _TOWERS and ("text_config" in config or "vision_config" in config):
        raise ModelError(
            f"{source}: {name} joins a language model with other towers, which are not built from "
            "a configuration. Give the part under text_config, with its own model_type and "
            '"architectures", as a config.json, or package.module:factory for all of it.'
        )
    if found:
        return found
    for suffix, what in _LOSS_BY_VALUES.items():
        if name.endswith(suffix):
            raise ModelError(
                f"{source}: the loss of {name} {what}, which depends on values and is not built "
                "from a configuration; pass package.module:factory, which returns the module, its "
                "inputs, targets and a loss_fn"
            )
    raise ModelError(
        f"{source}: architecture {name!r} is not supported; supported are names that end in "
        f"{', '.join(FAMILIES)}. Use package.module:factory for any other module."
    )


def _checked(spec: ModelSpec) -> ModelSpec:
    """The spec, after checks of values that would otherwise fail later."""
    config, where = spec.config, spec.source
    _family(config, where)
    if not isinstance(config.get("model_type"), str):
        raise ModelError(f"{where}: 'model_type' is missing (for example \"llama\")")
    for key, value in config.items():
        counts = key.startswith("num_") or key.endswith(("_size", "_layers", "_heads", "_dim"))
        if counts and isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0:
            raise ModelError(f"{where}: {key} must not be negative, is {value}")
    heads = config.get("num_attention_heads")
    hidden = config.get("hidden_size")
    kv_heads = config.get("num_key_value_heads")
    if isinstance(heads, int) and heads == 0:
        raise ModelError(f"{where}: num_attention_heads must be 1 or more")
    if isinstance(heads, int) and isinstance(hidden, int) and "head_dim" not in config:
        own_head_dim = "kv_lora_rank" in config
        if hidden % heads and not own_head_dim:
            raise ModelError(
                f"{where}: num_attention_heads={heads} does not divide hidden_size={hidden}"
            )
    if isinstance(heads, int) and isinstance(kv_heads, int) and kv_heads and heads % kv_heads:
        raise ModelError(
            f"{where}: num_key_value_heads={kv_heads} does not divide num_attention_heads={heads}"
        )
    return spec
