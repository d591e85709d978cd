"""What can be built from a configuration, and what is said of one that cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import ModelError
from profiles.model.build import build_model
from profiles.model.loaders import ModelSpec, resolve_model

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 100,
}


def spec_of(config: dict[str, Any]) -> ModelSpec:
    return ModelSpec(name="ours", source="config.json", config=config)


def test_convolutions_without_an_image_size_get_imagenets() -> None:
    """A ResNet's configuration has no image_size: any fits."""
    config = {
        "architectures": ["ResNetForImageClassification"],
        "model_type": "resnet",
        "embedding_size": 8,
        "hidden_sizes": [8, 16],
        "depths": [1, 1],
        "num_channels": 3,
    }
    (images,) = build_model(spec_of(config), micro_batch=2, sequence_length=1).args
    assert images.shape == (2, 3, 224, 224)


def test_the_language_part_of_a_larger_model_is_found() -> None:
    """`gemma3_text` is a type without a module of its own in transformers."""
    config = LLAMA | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_key_value_heads": 2,
        "head_dim": 16,
    }
    module = build_model(spec_of(config), micro_batch=1, sequence_length=8).module
    assert type(module).__name__ == "Gemma3ForCausalLM"


def test_towers_are_refused_with_what_to_do(tmp_path: Path) -> None:
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": LLAMA,
        "vision_config": {},
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"Give the part under text_config"):
        resolve_model(str(path))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hidden_size": 64.5}, r"cannot be built from this configuration: .*hidden_size"),
        ({"hidden_size": float("nan")}, r"cannot be built from this configuration: .*hidden_size"),
        ({"hidden_size": "64"}, r"cannot be built from this configuration: .*hidden_size"),
        ({"architectures": ["LamaForCausalLM"]}, "transformers has no LamaForCausalLM"),
        ({"model_type": "no_such"}, "transformers has no LlamaForCausalLM"),
        (
            {"architectures": ["CLIPForImageClassification"], "model_type": "clip"},
            "inputs for CLIPForImageClassification cannot be made",
        ),
    ],
)
def test_what_cannot_be_built_says_why(changes: dict[str, Any], why: str) -> None:
    config = LLAMA | changes
    if config["model_type"] == "clip":
        config = changes
    with pytest.raises(ModelError, match=f"(?s){why}"):
        build_model(spec_of(config), micro_batch=1, sequence_length=8)
