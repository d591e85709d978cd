"""Resolve the name of a model, without torch.

A model is a shipped name (`llama-3.1-70b`, also `meta-llama/Llama-3.1-70B-Instruct`), the path of a
Hugging Face `config.json`, or `package.module:factory`. Only the last imports user code, when the
model is built.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    "ForVideoClassification": "vision",
    "ForSemanticSegmentation": "pixels",
    "ForConditionalGeneration": "seq2seq",
    "MTModel": "seq2seq",
    "CLIPModel": "pairs",
    "SiglipModel": "sigmoid pairs",
    "ForCTC": "ctc",
}
# Families that are built with all towers.
_TOWERS = ("pairs", "sigmoid pairs", "vision")
OWN_LOSS = "own loss"
"""Family of all other classes: trained on the loss in their output, or on its mean square."""
IMAGE_AND_TEXT = "image and text"
"""Family of vision-language models: language models with an image tower."""
_JOINS_TEXT = ("ForConditionalGeneration", "ForImageTextToText")
# Tasks whose loss depends on values, so that it cannot be traced on shapes.
_LOSS_BY_VALUES = {
    "ForObjectDetection": "matches boxes to objects",
    "ForInstanceSegmentation": "matches masks to objects",
    "ForUniversalSegmentation": "matches masks to objects",
}
_PARTS = ("text_config", "vision_config", "audio_config", "speech_config", "talker_config")
TEXT_PART = "#text_config"
"""Suffix of a file's name that selects its language model only."""
# Language models without their own class in transformers 5.23 -> the type with equal layers. The
# positions of images in the rotation cost nothing.
_SAME_LAYERS = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}
_TUNED = re.compile(r"-(?:instruct|chat|base|hf|it|pt)$")
_FACTORY = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
GIVEN = " (given in Python)"
"""Suffix of the name of a model given as an object."""

HEAD_COUNTS = (
    "num_attention_heads",
    "num_key_value_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "n_head",
)
"""Keys of a transformers configuration with the number of attention heads."""


_POSITION_COUNTS = (
    "max_target_positions",
    "max_position_embeddings",
    "n_positions",
    "context_length",
    "max_seq_len",
    "model_max_length",
)


def position_count(config: Mapping[str, Any]) -> int:
    """The most tokens per sample of a transformers configuration, 0 if it states none."""
    found = (config.get(key) for key in _POSITION_COUNTS)
    return next((count for count in found if isinstance(count, int) and count > 0), 0)


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


@functools.cache
def _shipped() -> Mapping[str, str]:
    """Name or alias of a shipped model, in lower case -> its name."""
    paths = sorted(MODEL_FOLDER.glob("*.json"))
    return {
        name: path.stem
        for path in paths
        for name in (path.stem, *read_mapping(path).get("aliases", ()))
    }


@functools.cache
def _by_short_name() -> Mapping[str, str]:
    return {_short_name(name): shipped for name, shipped in _shipped().items()}


def _short_name(name: str) -> str:
    """A name without organization, tuning and punctuation: `meta-llama/Meta-Llama-3-8B-Instruct`
    and `llama3-8b` are `llama-3-8b`, whose layers they have."""
    plain = name.rpartition("/")[2].removeprefix("meta-")
    while (shorter := _TUNED.sub("", plain)) != plain:
        plain = shorter
    return re.sub(r"[-_ ]", "", plain)


def model_names() -> tuple[str, ...]:
    """The shipped names."""
    return tuple(sorted(set(_shipped().values())))


def model_named(text: str) -> str | None:
    """The shipped model with this name or alias, or one like it (`_short_name`), or None."""
    name = text.lower()
    return _shipped().get(name) or _by_short_name().get(_short_name(name))


def resolve_model(text: str) -> ModelSpec:
    """The model of a name, path or factory.

    Raises ModelError for an unknown name and for a configuration with an unsupported architecture
    or invalid sizes, DocumentError for a file that is no JSON.
    """
    if _FACTORY.match(text):
        return ModelSpec(name=text, source=text, factory=text)
    if Path(text).is_dir() and text.lower() not in _shipped():
        # A checkpoint's folder, as transformers takes it.
        inside = Path(text) / "config.json"
        if not inside.is_file():
            raise ModelError(
                f"{text}: is a folder without a config.json; give a checkpoint's folder, the path "
                "of a config.json, or package.module:factory"
            )
        text = str(inside)
    file = text.removesuffix(TEXT_PART)
    if file.endswith(".json") or Path(file).is_file():
        config = read_mapping(file)
        folder = Path(file).resolve().parent.name
        name = str(config.get("_name_or_path") or folder or Path(file).stem)
        spec = ModelSpec(name=name, source=text, config=config)
        return _checked(_language_model(spec) if file != text else spec)
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
    towers = {key for key, value in config.items() if key in _PARTS and isinstance(value, Mapping)}
    # The first files of some types have the language model's keys at the top level.
    joined = towers | {"text_config"} if "num_hidden_layers" in config else towers
    if name.endswith(_JOINS_TEXT) and joined == {"text_config", "vision_config"}:
        return IMAGE_AND_TEXT
    if found not in _TOWERS and ("text_config" in config or "vision_config" in config):
        raise ModelError(_towers_refused(config, name, source))
    for suffix, what in _LOSS_BY_VALUES.items():
        if name.endswith(suffix):
            raise ModelError(
                f"{source}: the loss of {name} {what}, so it depends on values, which a "
                "configuration does not give; pass package.module:factory, which returns the "
                "module, its inputs, targets and a loss_fn"
            )
    return found or OWN_LOSS


def _towers_refused(config: Mapping[str, Any], name: str, source: str) -> str:
    """Why a configuration of several towers is refused, and how to plan its language model."""
    towers = ", ".join(key for key in config if key.endswith("_config") and key != "text_config")
    # Older checkpoints have the language model's keys at the top level.
    alone = (
        f"give {source}{TEXT_PART}"
        if isinstance(config.get("text_config"), Mapping)
        else f"save the file without {towers or 'them'}, with the language model's model_type and "
        '"architectures": ["...ForCausalLM"]'
    )
    return (
        f"{source}: {name} joins a language model with other towers ({towers or 'unnamed'}), whose "
        f"work per sample a configuration does not give. For the language model alone, {alone}; "
        "for all of it, give package.module:factory."
    )


def _language_model(spec: ModelSpec) -> ModelSpec:
    """The language model of a file with several towers."""
    part = spec.config.get("text_config")
    if "num_hidden_layers" in spec.config and "vision_config" in spec.config and part is None:
        # The first files of a type have the keys of its language model at the top level.
        own = {key: value for key, value in spec.config.items() if not key.endswith("_config")}
        part = {**own, "model_type": f"{spec.config.get('model_type')}_text"}
    if not isinstance(part, Mapping):
        raise ModelError(f"{spec.source}: the file has no table text_config")
    kind = str(part.get("model_type", ""))
    same = {"model_type": _SAME_LAYERS.get(kind, kind), "architectures": ["ForCausalLM"]}
    return replace(spec, config={**part, **same})


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPrecision:
    """name  fp8, bf16 and so on;  source  the publication and its section"""

    name: str
    source: str


def training_precision(model: str) -> TrainingPrecision | None:
    """The precision of a shipped model's published training, if its file names one; None for other
    models, files and modules.

    >>> training_precision("deepseek-v3").name
    'fp8'
    >>> training_precision("gpt2") is None
    True
    """
    shipped = model_named(model)
    if shipped is None:
        return None
    stated = read_mapping(MODEL_FOLDER / f"{shipped}.json").get("training_precision")
    if stated is None:
        return None
    return TrainingPrecision(name=str(stated["name"]), source=str(stated["source"]))
