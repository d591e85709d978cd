"""The image tower of a vision-language model of transformers, and a step of both towers.

The forward of these classes looks for a special value in `input_ids` and counts how often it
occurs. Control flow then depends on values, and a trace has only shapes. Here each sample is one
image and then text: the image tower and its projection give the first positions of the language
model, the embedded text the others. The modules and their work are the same.

Towers that take images of any size are given the size of every image as a constant.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from profiles.errors import ModelError

# Pixels of a side: Krizhevsky et al., NeurIPS 2012, section 2, and every torchvision recipe since.
_IMAGENET_SIZE = 224
# Of a tower that takes any size: Qwen-VL (arXiv 2308.12966, section 3.2).
_ANY_SIZE = 448


def image_size(config: Any, default: int = _IMAGENET_SIZE) -> tuple[int, int]:
    """Height and width in pixels; convolutions accept any."""
    size = getattr(config, "image_size", None) or default
    height, width = size if isinstance(size, (tuple, list)) else (size, size)
    return height, width


class ImageTower:
    """A tower with pixels as input; other towers are the classes below.

    shape  of the input of one image
    """

    def __init__(self, core: Any) -> None:
        self.core = core
        self.config: Any = core.config.vision_config
        self.size = image_size(self.config)
        self.shape: tuple[int, ...] = (self._channels(), *self.size)

    def _channels(self) -> int:
        names = ("num_channels", "in_channels", "in_chans")
        return int(next((v for n in names if (v := getattr(self.config, n, None))), 3))

    def outputs(self, core: Any, images: Tensor) -> Any:
        """The output of the tower for a batch of images."""
        found = core.get_image_features(pixel_values=images)
        if getattr(found, "pooler_output", found) is None:  # Llama 4 projects behind it
            return core.multi_modal_projector(found.last_hidden_state.flatten(0, 1))
        return found

    def features(self, core: Any, images: Tensor) -> Tensor:
        """Projected features of the images, [positions, hidden size]."""
        return _joined(self.outputs(core, images))

    def positions(self) -> int:
        """Positions of the language model that one image takes, from shapes alone."""
        queries = getattr(self.core.config, "num_query_tokens", None)
        if queries:  # of BLIP-2, whose masks are made of values
            return int(queries)
        run = _Features(self)
        held = (*run.named_parameters(), *run.named_buffers())
        shapes = {name: x.detach().to("meta") for name, x in held}
        with torch.no_grad():
            kind = next(x.dtype for x in shapes.values() if x.is_floating_point())
            image = torch.empty((1, *self.shape), dtype=kind, device="meta")
            seen: Tensor = torch.func.functional_call(run, shapes, image)
        return seen.shape[0]

    def call(self, module: nn.Module, images: Tensor, tokens: Tensor) -> Tensor:
        """Logits [batch, positions of the image + text, vocabulary]."""
        core: Any = getattr(module, "model", module)
        words = core.get_input_embeddings()(tokens)
        found = self.outputs(core, images)
        seen = _joined(found).to(words.dtype).reshape(words.shape[0], -1, words.shape[-1])
        inputs = torch.cat([seen, words], dim=1)
        more: dict[str, Any] = {"use_cache": False}
        deep = getattr(found, "deepstack_features", None)
        if deep:
            # Features of lower layers of the tower, added to those positions in the first layers
            # of the language model (Qwen3-VL, arXiv 2511.21631).
            first = torch.arange(inputs.shape[1], device=inputs.device) < seen.shape[1]
            more["visual_pos_masks"] = first.expand(inputs.shape[:2])
            more["deepstack_visual_embeds"] = [_joined(of_layer) for of_layer in deep]
        output = _language_model(core)(inputs_embeds=inputs, **more)
        head: Any = getattr(module, "lm_head", None)  # Llama 4's is in its language model
        logits: Tensor = head(output.last_hidden_state) if head else output.logits
        return logits


# Types whose towers treat each frame of a video as an image: the images of a batch are the frames
# of one, without a loop over images.
_FRAMES_ALONE = "qwen"


class _OfPatches(ImageTower):
    """A tower whose inputs are the patches of all images in sequence, and their grids (Qwen-VL,
    GLM-V, Kimi)."""

    def __init__(self, core: Any) -> None:
        super().__init__(core)
        config = self.config
        patch = int(config.patch_size)
        merged: Any = getattr(config, "spatial_merge_size", None)
        merged = merged or getattr(config, "merge_kernel_size", 1)
        merge = merged if isinstance(merged, int) else int(merged[0])
        self.grid = [side // (patch * merge) * merge for side in image_size(config, _ANY_SIZE)]
        self.merged = merge * merge
        frames = getattr(config, "temporal_patch_size", None)
        values = (self._channels(), patch, patch)
        count = self.grid[0] * self.grid[1]
        self.shape = (count, int(frames) * math.prod(values)) if frames else (count, *values)
        window = int(getattr(config, "window_size", None) or 0) // patch or 1
        if not any(side % window for side in self.grid):
            _attend_in_equal_parts(config)

    def outputs(self, core: Any, images: Tensor) -> Any:
        count = images.shape[0]
        one_video = str(getattr(self.config, "model_type", "")).startswith(_FRAMES_ALONE)
        rows = [[count, *self.grid]] if one_video else [[1, *self.grid]] * count
        grids = torch.tensor(rows, device=images.device)
        return core.get_image_features(images.flatten(0, 1), grids)

    def positions(self) -> int:
        return self.shape[0] // self.merged


def _attend_in_equal_parts(config: Any) -> None:
    """Let the tower's layers compute attention within images, or windows, in one call. Without
    flash-attn, transformers makes a call for each: for a micro-batch of two, thirty in each layer
    of Qwen2.5-VL."""
    from transformers import AttentionInterface

    AttentionInterface.register(_EQUAL_PARTS, _attention_in_equal_parts)
    config._attn_implementation = _EQUAL_PARTS


_EQUAL_PARTS = "flash_in_equal_parts"
"""transformers passes the lengths of all parts to attention functions with this word in their name
(5.23)."""


def _attention_in_equal_parts(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    cu_seq_lens_q: Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention within equal parts of the sequence: [1, heads, positions, size] -> [1, positions,
    heads, size]."""
    parts = cu_seq_lens_q.shape[0] - 1
    q, k, v = (x.squeeze(0).unflatten(1, (parts, -1)).transpose(0, 1) for x in (query, key, value))
    out = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scaling)
    return out.transpose(1, 2).flatten(0, 1).unsqueeze(0), None


class _OfSizes(ImageTower):
    """A tower with the size of each image as input, in tiles if the model makes tiles."""

    def __init__(self, core: Any) -> None:
        super().__init__(core)
        self.tiles = bool(getattr(core.config, "image_grid_pinpoints", None))
        if self.tiles:
            self.shape = (self._tile_count(), *self.shape)

    def _tile_count(self) -> int:
        counts = inspect.getmodule(type(self.core)).image_size_to_num_patches  # type: ignore[union-attr] # of its file
        pinpoints = self.core.config.image_grid_pinpoints
        return int(counts(list(self.size), pinpoints, self.size[0]))

    def outputs(self, core: Any, images: Tensor) -> Any:
        sizes = torch.tensor([list(self.size)] * images.shape[0], device="cpu")
        return core.get_image_features(images, sizes)

    def positions(self) -> int:
        if self.tiles:
            return super().positions()
        step = int(self.config.patch_size) * int(self.core.config.spatial_merge_size)
        return (self.size[0] // step) * (self.size[1] // step)


class _Connected(ImageTower):
    """Idefics and SmolVLM, whose own method drops images of zeros first."""

    def outputs(self, core: Any, images: Tensor) -> Any:
        seen = core.vision_model(pixel_values=images).last_hidden_state
        if not hasattr(core.connector, "perceiver_resampler"):
            return core.connector(seen)
        return core.connector(seen, attention_mask=torch.ones_like(seen[..., 0], dtype=torch.bool))

    def positions(self) -> int:
        whole: Any = self.core.config
        latents = getattr(getattr(whole, "perceiver_config", None), "resampler_n_latents", None)
        patches = self.size[0] // self.config.patch_size * (self.size[1] // self.config.patch_size)
        return int(latents or patches // getattr(whole, "scale_factor", 1) ** 2)


class _CrossAttended(ImageTower):
    """Llama 3.2 Vision: some layers of the language model attend to the image, which takes none of
    the model's positions. An image fills all tiles of the tower."""

    def __init__(self, core: Any) -> None:
        super().__init__(core)
        self.tiles = int(self.config.max_num_tiles)
        self.shape = (self.tiles, *self.shape)
        ratios = [tuple(each) for each in self.config.supported_aspect_ratios]
        filled = [number for number, (a, b) in enumerate(ratios, 1) if a * b == self.tiles]
        # The most square one; 0 is no image.
        self.ratio = min(filled, key=lambda number: max(ratios[number - 1]))

    def positions(self) -> int:
        return 0

    def call(self, module: nn.Module, images: Tensor, tokens: Tensor) -> Tensor:
        core: Any = module.model
        one = (images.shape[0], 1)
        seen = core.vision_model(
            pixel_values=images.unsqueeze(1),
            aspect_ratio_ids=torch.full(one, self.ratio, device=images.device),
            aspect_ratio_mask=images.new_ones((*one, self.tiles), dtype=torch.long),
        ).last_hidden_state
        states = core.multi_modal_projector(seen).flatten(0, 2)
        output = core.language_model(
            input_ids=tokens, cross_attention_states=states, use_cache=False
        )
        logits: Tensor = module.lm_head(output.last_hidden_state)  # type: ignore[operator] # a submodule
        return logits


class _Features(nn.Module):
    def __init__(self, tower: ImageTower) -> None:
        super().__init__()
        self.core, self._tower = tower.core, [tower]

    def forward(self, images: Tensor) -> Tensor:
        return self._tower[0].features(self.core, images)


def image_tower(module: nn.Module) -> ImageTower:
    """The image tower of a vision-language model.

    Raises ModelError for a model whose tower needs other inputs.
    """
    core: Any = getattr(module, "model", module)
    if hasattr(getattr(core.config, "vision_config", None), "max_num_tiles"):
        return _CrossAttended(core)
    missing = [x for x in ("get_image_features", "get_input_embeddings") if not hasattr(core, x)]
    if _language_model(core) is None:
        missing.append("language_model")
    why = f"has no {missing[0]}" if missing else ""
    if not why:
        if hasattr(core, "connector") and hasattr(core, "vision_model"):
            return _Connected(core)
        given = inspect.signature(core.get_image_features).parameters.values()
        known = ("pixel_values", "kwargs", "image_sizes")
        free = [x.name for x in given if x.default is x.empty and x.name not in known]
        names = {x.name for x in given}
        if "image_grid_thw" in names:
            return _OfPatches(core)
        if not free:
            needed = [x.name for x in given if x.default is x.empty]
            return (_OfSizes if "image_sizes" in needed else ImageTower)(core)
        why = f"needs {free[0]} of each image, so values of its inputs decide which code runs"
    raise ModelError(
        f"{type(module).__name__} cannot be built from a configuration: it {why}. For its language "
        "model alone, add #text_config to the file's name; for all of it, give "
        "package.module:factory"
    )


def _language_model(core: Any) -> Any:
    return getattr(core, "language_model", None) or getattr(core, "text_model", None)


def _joined(outputs: Any) -> Tensor:
    found = getattr(outputs, "pooler_output", outputs)
    return torch.cat([x.reshape(-1, x.shape[-1]) for x in tree_leaves(found)])
