"""A step of a vision-language model of transformers, joined by shapes.

The forward of these classes looks for a special value in `input_ids` and counts how often it
occurs. Control flow then depends on values, and a trace has only shapes. Here each sample is one
image and then text: the image tower and its projection give the first positions of the language
model, the embedded text the others. The modules and their work are the same.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from profiles.errors import ModelError


def call_image_and_text(module: nn.Module, images: Tensor, tokens: Tensor) -> Tensor:
    """Logits [batch, positions of the image + text, vocabulary]."""
    core: Any = getattr(module, "model", module)
    words = core.get_input_embeddings()(tokens)
    seen = image_features(core, images).to(words.dtype)
    inputs = torch.cat([seen.reshape(words.shape[0], -1, words.shape[-1]), words], dim=1)
    output = core.language_model(inputs_embeds=inputs, use_cache=False)
    return module.lm_head(output.last_hidden_state)  # type: ignore[operator, no-any-return] # a submodule


def image_features(core: Any, images: Tensor) -> Tensor:
    """Projected features of the images, [positions, hidden size]."""
    found = core.get_image_features(pixel_values=images)
    found = getattr(found, "pooler_output", found)
    return torch.cat([x.reshape(-1, x.shape[-1]) for x in tree_leaves(found)])


def refuse_values(module: nn.Module) -> None:
    """Raises ModelError for a model whose image tower needs more than pixels, such as the grid of
    each image."""
    core: Any = getattr(module, "model", module)
    parts = ("get_image_features", "get_input_embeddings", "language_model")
    why = next((f"has no {part}" for part in parts if not hasattr(core, part)), "")
    if not why:
        given = inspect.signature(core.get_image_features).parameters.values()
        known = ("pixel_values", "kwargs")
        free = [x.name for x in given if x.default is x.empty and x.name not in known]
        free += [x.name for x in given if x.name == "image_grid_thw" and x.name not in free]
        why = f"needs {free[0]} of each image, and so values decide what runs" if free else ""
    if why:
        raise ModelError(
            f"{type(module).__name__} {why}: it is not built from a configuration. For the "
            "language model alone add #text_config to the file's name, for all of it give "
            "package.module:factory"
        )


def image_positions(module: nn.Module, images: Tensor) -> int:
    """Positions of the language model that one image takes, from shapes alone."""
    tower = _ImageTower(getattr(module, "model", module))
    held = (*tower.named_parameters(), *tower.named_buffers())
    shapes = {name: x.detach().to("meta") for name, x in held}
    with torch.no_grad():
        seen: Tensor = torch.func.functional_call(tower, shapes, images[:1].to("meta"))
    return seen.shape[0]


class _ImageTower(nn.Module):
    def __init__(self, core: Any) -> None:
        super().__init__()
        self.core = core

    def forward(self, images: Tensor) -> Tensor:
        return image_features(self.core, images)
