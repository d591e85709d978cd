"""Factories for tables of modules: small ones, and ones that fail."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


def mlp(width: int, batch: int):
    net = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 10))
    return net, (torch.zeros(batch, width),), torch.zeros(batch, dtype=torch.long), F.cross_entropy


def convolutions(batch: int, groups: int = 1):
    net = nn.Sequential(
        nn.Conv2d(16, 32, 3, stride=2, padding=1, groups=groups, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    targets = torch.zeros(batch, dtype=torch.long)
    return net, (torch.zeros(batch, 16, 32, 32),), targets, F.cross_entropy


def volumes(batch: int):
    net = nn.Sequential(nn.Conv3d(8, 64, 3, padding=1), nn.ReLU(), nn.Conv3d(64, 8, 3, padding=1))
    return net, (torch.zeros(batch, 8, 64, 64, 64),), None, lambda y, _: y.mean()


class _Speaks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 64, 2, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


def recurrence(batch: int):
    return _Speaks(), (torch.zeros(batch, 20, 32),), None, lambda y, _: y.mean()


class _Slices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 1)
        self.second = nn.Conv2d(16, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)[:, :16])


def sliced(batch: int):
    return _Slices(), (torch.zeros(batch, 3, 16, 16),), None, lambda y, _: y.mean()


class _Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v)


def attention(batch: int):
    return _Attends(), (torch.zeros(batch, 128, 64),), None, lambda y, _: y.square().mean()


def counts_while_built(batch: int):
    """A constructor that asks a table for its values, as timm's stochastic depth does."""
    rates = [rate.item() for rate in torch.linspace(0, 0.5, 3)]
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(rates[-1]), nn.Linear(8, 2))
    return net, (torch.zeros(batch, 8),), torch.zeros(batch, dtype=torch.long), F.cross_entropy


def raises(batch: int):
    raise RuntimeError("no such data set,\nsorry")


def returns_a_module(batch: int):
    return nn.Linear(2, 2)


class _AsksForValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y if y.sum().item() > 0 else -y


def asks_for_values(batch: int):
    return _AsksForValues(), (torch.zeros(batch, 4),), None, lambda y, _: y.sum()
