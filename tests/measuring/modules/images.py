"""Modules of images, volumes and lines, as factories."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.measuring.modules.made import Made, labels


def video() -> Made:
    """Convolutions of volumes (Tran et al., ICCV 2015), halved three times."""

    def block(inside: int, out: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv3d(inside, out, 3, padding=1),
            nn.BatchNorm3d(out),
            nn.ReLU(),
            nn.MaxPool3d(2),
        )

    net = nn.Sequential(
        block(3, 16), block(16, 32), block(32, 64), nn.Flatten(), nn.Linear(64 * 2 * 4 * 4, 10)
    )
    return net, (torch.randn(4, 3, 16, 32, 32),), labels(4, 10), nn.CrossEntropyLoss()


class UNet(nn.Module):
    """Ronneberger et al., 2015: skips, transposed convolutions."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()

        def pair(inside: int, out: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(inside, out, 3, padding=1),
                nn.GroupNorm(4, out),
                nn.SiLU(),
                nn.Conv2d(out, out, 3, padding=1),
                nn.GroupNorm(4, out),
                nn.SiLU(),
            )

        self.down = nn.ModuleList([pair(1, width), pair(width, 2 * width)])
        self.middle = pair(2 * width, 4 * width)
        self.grow = nn.ModuleList(
            [
                nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2),
                nn.ConvTranspose2d(2 * width, width, 2, stride=2),
            ]
        )
        self.up = nn.ModuleList([pair(4 * width, 2 * width), pair(2 * width, width)])
        self.head = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for layer in self.down:
            x = layer(x)
            kept.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.middle(x)
        for grow, layer in zip(self.grow, self.up, strict=True):
            x = layer(torch.cat([grow(x), kept.pop()], dim=1))
        return self.head(x)


def unet() -> Made:
    targets = torch.arange(4 * 64 * 64).reshape(4, 64, 64) % 3
    return UNet(), (torch.randn(4, 1, 64, 64),), targets, nn.CrossEntropyLoss()


def separable() -> Made:
    """Depthwise and pointwise convolutions (Howard et al., arXiv 1704.04861)."""

    def block(inside: int, out: int, stride: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inside, inside, 3, stride, 1, groups=inside, bias=False),
            nn.BatchNorm2d(inside),
            nn.ReLU6(),
            nn.Conv2d(inside, out, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU6(),
        )

    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU6(),
        block(32, 64, 1),
        block(64, 128, 2),
        block(128, 128, 1),
        block(128, 256, 2),
        block(256, 256, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 100),
    )
    return net, (torch.randn(8, 3, 96, 96),), labels(8, 100), nn.CrossEntropyLoss()


class Wave(nn.Module):
    """Gated dilated convolutions of lines (van den Oord et al., arXiv 1609.03499)."""

    def __init__(self, width: int = 32, depth: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, width, 1)
        self.wide = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 3, padding=2**i, dilation=2**i) for i in range(depth)
        )
        self.back = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(depth))
        self.head = nn.Sequential(
            nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, 64, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        told = torch.zeros_like(x)
        for wide, back in zip(self.wide, self.back, strict=True):
            value, gate = wide(x).chunk(2, dim=1)
            step, skip = back(torch.tanh(value) * torch.sigmoid(gate)).chunk(2, dim=1)
            x, told = x + step, told + skip
        return self.head(told)


def wave() -> Made:
    targets = torch.arange(4 * 2000).reshape(4, 2000) % 64
    return Wave(), (torch.randn(4, 1, 2000),), targets, nn.CrossEntropyLoss()


class Autoencoder(nn.Module):
    """Strided convolutions down, interpolation up."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        sizes = (3, width, 2 * width, 4 * width)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 4, 2, 1) for a, b in pairwise(sizes))
        back = sizes[::-1]
        self.up = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(back))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.down:
            x = functional.leaky_relu(layer(x), 0.2)
        for layer in self.up:
            x = layer(functional.interpolate(functional.elu(x), scale_factor=2.0))
        return x


def autoencoder() -> Made:
    images = torch.randn(8, 3, 64, 64)
    return Autoencoder(), (images,), images.clone(), nn.MSELoss()


class Dense(nn.Module):
    """Every layer reads all before it (Huang et al., CVPR 2017)."""

    def __init__(self, growth: int = 16, depth: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 5, stride=2, padding=2)
        self.norms = nn.ModuleList(nn.BatchNorm2d(32 + i * growth) for i in range(depth))
        self.convs = nn.ModuleList(
            nn.Conv2d(32 + i * growth, growth, 3, padding=1) for i in range(depth)
        )
        self.head = nn.Linear(32 + depth * growth, 20)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.avg_pool2d(self.stem(x), 2)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, conv(torch.relu(norm(x)))], dim=1)
        return self.head(x.amax(dim=(2, 3)))


def dense() -> Made:
    return Dense(), (torch.randn(8, 3, 64, 64),), labels(8, 20), nn.CrossEntropyLoss()
