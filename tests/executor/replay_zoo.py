"""Small models whose calls follow values or shared lists: what runs is not the same in every stage,
replica or step."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.executor.module_zoo import Made, Mlp, classified


class Skipped(nn.Module):
    """Every second layer or so is left out, drawn at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 12), nn.Linear(12, 4)
        self.layers = nn.ModuleList(Mlp() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for layer in self.layers:
            if torch.rand([]) < 0.5:
                h = layer(h)
        return self.head(h)


def skipped() -> Made:
    return classified(Skipped())


class Popping(nn.Module):
    """A way up whose layers take the features of the way down off a list."""

    class Up(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = Mlp()

        def forward(self, x: Tensor, kept: list[Tensor]) -> Tensor:
            return self.mlp(x) + kept.pop()

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 12), nn.Linear(12, 4)
        self.down = nn.ModuleList(Mlp() for _ in range(3))
        self.up = nn.ModuleList(self.Up() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h, kept = self.stem(x), []
        for layer in self.down:
            h = layer(h)
            kept.append(h)
        for layer in self.up:
            h = layer(h, kept)
        return self.head(h)


def popping() -> Made:
    return classified(Popping())


class OneEach(nn.Module):
    """Two experts; a row and its negative go to different ones."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 12, bias=False), nn.Linear(12, 4)
        self.router = nn.Linear(12, 2, bias=False)
        self.experts = nn.ModuleList([nn.Linear(12, 12), nn.Linear(12, 12)])

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        out, chosen = h * 2, self.router(h).argmax(-1)
        for number, expert in enumerate(self.experts):
            mask = chosen == number
            if mask.any():
                out[mask] = out[mask] + expert(h[mask])
        return self.head(out)


def one_each() -> Made:
    """In a batch of eight the first half needs one expert, the second the other."""
    rows = torch.linspace(1, 2, 6, device="cpu") * torch.linspace(1, 2, 4, device="cpu")[:, None]
    classes = torch.arange(8, device="cpu") % 4
    return OneEach(), (torch.cat([rows, -rows]),), classes, functional.cross_entropy
