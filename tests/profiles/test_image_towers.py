"""Vision-language models of transformers by their configurations: towers that are given pixels of a
fixed size, patches with a grid, tiles with a size, or images that their own method would filter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from profiles.errors import ModelError
from profiles.model.building.build import BuiltModel, build_model
from profiles.model.loaders import IMAGE_AND_TEXT, ModelSpec, resolve_model
from profiles.model.tracing.traced import trace_model
from tests.executor.config_zoo import config_of

_TILES = {
    "architectures": ["LlavaNextForConditionalGeneration"],
    "model_type": "llava_next",
    "text_config": {**config_of("llava")["text_config"], "max_position_embeddings": 128},
    "vision_config": {
        **config_of("llava")["vision_config"],
        "image_size": 32,
    },
    "image_grid_pinpoints": [[32, 64], [64, 32], [64, 64]],
    "image_token_index": 95,
}
_KIMI = {
    "architectures": ["Kimi_K25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "text_config": {**config_of("deepseek-v3"), "hidden_size": 32},
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "image_size": 56,
    },
    "projection_hidden_size": 32,
    "image_token_id": 95,
}
# Family -> its configuration, and the positions that an image takes.
FAMILIES: dict[str, tuple[dict[str, Any], int]] = {
    "pixels": (config_of("llava"), 4),
    "windows": (config_of("qwen2_5_vl"), 4),
    "features of lower layers": (config_of("qwen3_vl"), 4),
    "sizes": (config_of("mistral3"), 4),
    "connector": (config_of("idefics3"), 4),
    # The whole image and two tiles of 4 x 4 patches; the image fills one, each row has an end.
    "tiles": (_TILES, 16 + 4 * (4 + 1)),
    "patches of images": (_KIMI, 4),
    "cross-attention": (config_of("mllama"), 0),
    "queries": (config_of("blip2"), 4),
}


def built(config: Mapping[str, Any], length: int, *, batch: int = 2) -> BuiltModel:
    spec = ModelSpec(name="model", source="config.json", config=config)
    assert spec.family == IMAGE_AND_TEXT
    return build_model(spec, micro_batch=batch, sequence_length=length, device="cpu")


@pytest.mark.parametrize("family", FAMILIES)
def test_an_image_takes_its_positions_and_trains_both_towers(family: str) -> None:
    config, positions = FAMILIES[family]
    model = built(config, positions + 8)
    images, words = model.args
    assert (images.shape[0], words.shape) == (2, (2, 8))
    logits = model.call(model.module, images, words)
    assert logits.shape[:2] == (2, positions + 8)
    model.loss_fn(logits, model.targets).backward()
    without = {name for name, x in model.module.named_parameters() if x.grad is None}
    # CLIP's last norm, and layers behind the one whose features are taken, give no feature;
    # experts without rows and their router's correction have no gradient.
    unused = ("post_layernorm", "encoder.layers.2.", ".layers.2.", "experts", "gate.")
    assert not {name for name in without if not any(part in name for part in unused)}


def test_the_images_of_a_batch_do_not_see_each_other() -> None:
    """Those of Qwen's towers are the frames of one video; attention is within windows, in one
    call. Both give what transformers gives of each image with its own grid."""
    model = built(config_of("qwen2_5_vl"), 12, batch=3)
    tower: Any = model.call.__self__  # type: ignore[attr-defined] # of a bound method
    core, images = model.module.model, model.args[0]
    found = tower.features(core, images)
    core.config.vision_config._attn_implementation = "sdpa"
    grids = torch.tensor([[1, *tower.grid]] * 3)
    by_image = core.get_image_features(images.flatten(0, 1), grids).pooler_output
    torch.testing.assert_close(found, torch.cat(by_image))
    assert tower.positions() == 4


def test_graphs_of_larger_batches_follow_from_two() -> None:
    """A loop over windows had ops for each image, and every micro-batch was traced anew."""
    spec = ModelSpec(name="model", source="config.json", config=config_of("qwen2_5_vl"))
    traced = trace_model(spec, sequence_length=12, dtype="bfloat16", target="gpu")
    assert traced.at(16).kinds
    assert not traced._traced
    attention = [
        op.attention for kind in traced.at(16).kinds for op in kind.forward_ops if op.attention
    ]
    # Four windows of 4 patches in each of 16 images, or whole images of 16 patches, then text.
    assert {(x.batch, x.q_len) for x in attention} == {(64, 4), (16, 16), (16, 12)}


def test_both_towers_are_split_over_two_ranks() -> None:
    """A grid and a merge size are constants that the code makes where there are no values."""
    spec = ModelSpec(name="model", source="config.json", config=config_of("qwen3_vl"))
    settings: dict[str, Any] = {"dtype": "float32", "target": "gpu", "tp_degrees": (1, 2)}
    traced = trace_model(spec, sequence_length=12, **settings)
    assert (traced.tp_degrees, traced.why_not_tensor_parallel) == ((1, 2), "")


def test_the_language_model_of_a_file_without_a_table_for_it(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_of("qwen2_5_vl")))
    alone = resolve_model(f"{path}#text_config")
    assert (alone.family, alone.config["model_type"]) == ("causal", "qwen2")
    assert not {key for key in alone.config if key.endswith("_config")}


def test_a_tower_that_needs_more_than_images_is_refused() -> None:
    text = config_of("llava")["text_config"]
    config = {
        "architectures": ["Lfm2VlForConditionalGeneration"],
        "model_type": "lfm2_vl",
        "text_config": {**text, "model_type": "llama"},
        "vision_config": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    }
    with pytest.raises(ModelError, match=r"needs spatial_shapes of each image.*#text_config"):
        built(config, 16)
