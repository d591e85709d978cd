"""Small modules that are no transformers, as factories."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """A convolution with batch normalisation around which the input goes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.norm(self.conv(x)))


def cnn() -> tuple[nn.Module, tuple[Tensor, ...], Tensor, nn.Module]:
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        Residual(8),
        Residual(8),
        Residual(8),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 16)),
        nn.Linear(16, 5),
    )
    images = torch.linspace(-1, 1, 4 * 3 * 8 * 8).reshape(4, 3, 8, 8)
    return module, (images,), torch.tensor([0, 1, 2, 3]), nn.CrossEntropyLoss()
