"""A UNet (Ronneberger et al., arXiv 1505.04597, figure 1, padded) as a factory for Shardwright.

shardwright fit examples.unet:build --precision fp32
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


def double_conv(channels_in: int, channels_out: int) -> nn.Module:
    """Two 3x3 convolutions with ReLU."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels_out, channels_out, 3, padding=1),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Four levels down, four up; every level's features skip over to the way up."""

    def __init__(self, channels: int = 32, num_classes: int = 2) -> None:
        super().__init__()
        widths = [channels * 2**level for level in range(5)]
        self.down = nn.ModuleList(
            double_conv(a, b) for a, b in zip([1, *widths[:-1]], widths, strict=True)
        )
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairwise(widths)
        )
        self.up = nn.ModuleList(double_conv(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(channels, num_classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        skips = []
        x = images
        for level, block in enumerate(self.down):
            x = block(x)
            if level < len(self.down) - 1:
                skips.append(x)
                x = nn.functional.max_pool2d(x, 2)
        for level in reversed(range(len(self.up))):
            x = self.up[level](torch.cat([skips[level], self.grow[level](x)], dim=1))
        return self.head(x)


def build() -> tuple[nn.Module, tuple[Tensor, ...], Tensor, nn.Module]:
    """The module with two images, a class per pixel and the loss."""
    return (
        UNet(),
        (torch.zeros(2, 1, 64, 64),),
        torch.zeros(2, 64, 64, dtype=torch.long),
        nn.CrossEntropyLoss(),
    )
