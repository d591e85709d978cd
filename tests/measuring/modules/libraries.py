"""Modules of torchvision and timm, with weights that nobody trained, as factories."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers  # noqa: F401 # looks for torchvision now, and finds none
from torch import nn

from tests.measuring.modules.made import Made, labels

# torchvision of PyPI is compiled for CUDA: beside torch for CPUs its ops are not loaded, and where
# transformers finds it, it imports it and fails. So it lies in a folder of its own (make validate),
# and transformers, which looks once, looks before.
FOLDER = Path(__file__).parents[3] / ".venv-modules"


def _import(name: str) -> Any:
    """torchvision or timm, with the ops declared that torchvision's import asks for; no model here
    calls them."""
    if "torchvision" not in sys.modules:
        sys.path.append(str(FOLDER))
        for op in ("nms", "qnms"):
            arguments = "(Tensor boxes, Tensor scores, float iou) -> Tensor"
            torch.library.define(f"torchvision::{op}", arguments)
    return importlib.import_module(name)


def _classifier(net: nn.Module, samples: int, pixels: int) -> Made:
    images = torch.randn(samples, 3, pixels, pixels)
    return net, (images,), labels(samples, 10), nn.CrossEntropyLoss()


def _torchvision(name: str, samples: int, pixels: int) -> Made:
    net = _import("torchvision").models.get_model(name, num_classes=10)
    return _classifier(net, samples, pixels)


def _timm(name: str, samples: int, pixels: int, **keywords: Any) -> Made:
    net = _import("timm").create_model(name, num_classes=10, **keywords)
    return _classifier(net, samples, pixels)


resnet18 = partial(_torchvision, "resnet18", 4, 96)
shufflenet = partial(_torchvision, "shufflenet_v2_x0_5", 8, 96)
squeezenet = partial(_torchvision, "squeezenet1_1", 4, 96)
mobilenet = partial(_torchvision, "mobilenet_v3_small", 8, 96)
mnasnet = partial(_torchvision, "mnasnet0_5", 8, 96)
convnext = partial(_timm, "convnext_atto", 4, 96)
vision_transformer = partial(_timm, "vit_tiny_patch16_224", 4, 96, img_size=96)
efficientnet = partial(_timm, "efficientnet_b0", 4, 96)
repvgg = partial(_timm, "repvgg_a0", 4, 64)
