"""Modules of linear layers, as factories: few samples and wide, many and narrow, mixed, experts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.measuring.modules.made import Made, labels


def wide() -> Made:
    """Few samples of wide layers: their weights are read, little is computed."""
    net = nn.Sequential(
        nn.Linear(512, 2048),
        nn.ReLU(),
        *(m for _ in range(3) for m in (nn.Linear(2048, 2048), nn.ReLU())),
        nn.Linear(2048, 10),
    )
    return net, (torch.randn(8, 512),), labels(8, 10), nn.CrossEntropyLoss()


class Field(nn.Module):
    """Many samples of narrow layers, sines of coordinates (Mildenhall et al., 2003.08934)."""

    def __init__(self, width: int = 96, depth: int = 6) -> None:
        super().__init__()
        self.register_buffer("frequencies", 2.0 ** torch.arange(6))
        self.stem = nn.Linear(3 * 12, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        angles = (x[..., None] * self.frequencies).flatten(-2)
        x = self.stem(torch.cat([angles.sin(), angles.cos()], dim=-1))
        for layer in self.layers:
            x = functional.softplus(layer(x))
        return torch.sigmoid(self.head(x))


def field() -> Made:
    return Field(), (torch.randn(4096, 3),), torch.zeros(4096, 4), nn.L1Loss()


class Mixer(nn.Module):
    """Perceptrons over patches and over channels (Tolstikhin et al., arXiv 2105.01601)."""

    def __init__(self, patches: int = 64, width: int = 128, depth: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 8, stride=8)

        def perceptron(size: int, inside: int) -> nn.Module:
            return nn.Sequential(
                nn.LayerNorm(size), nn.Linear(size, inside), nn.GELU(), nn.Linear(inside, size)
            )

        self.across = nn.ModuleList(perceptron(patches, 2 * patches) for _ in range(depth))
        self.within = nn.ModuleList(perceptron(width, 4 * width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        for across, within in zip(self.across, self.within, strict=True):
            x = x + across(x.transpose(1, 2)).transpose(1, 2)
            x = x + within(x)
        return self.head(x.mean(dim=1))


def mixer() -> Made:
    return Mixer(), (torch.randn(8, 3, 64, 64),), labels(8, 10), nn.CrossEntropyLoss()


class Experts(nn.Module):
    """Four perceptrons, each sample weighing all (soft mixtures), in two layers."""

    def __init__(self, width: int = 128, experts: int = 4) -> None:
        super().__init__()
        self.gates = nn.ModuleList(nn.Linear(width, experts) for _ in range(2))
        self.up = nn.Parameter(torch.randn(2, experts, width, 4 * width) / width**0.5)
        self.down = nn.Parameter(torch.randn(2, experts, 4 * width, width) / width**0.5 / 2)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        for gate, up, down in zip(self.gates, self.up, self.down, strict=True):
            weight = gate(x).softmax(dim=-1)
            inside = functional.gelu(torch.einsum("nd,edf->nef", x, up))
            x = x + torch.einsum("nef,efd,ne->nd", inside, down, weight)
        return self.head(x)


def experts() -> Made:
    return Experts(), (torch.randn(256, 128),), labels(256, 5), nn.CrossEntropyLoss()
