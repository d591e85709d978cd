"""Small models whose calls follow values or shared lists: what runs is not the same in every stage,
replica or step."""

from __future__ import annotations

from collections import UserDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.executor.module_zoo import Made, Mlp, Stacked, classified, factory


class Skipped(Stacked):
    """Every second layer or so is left out, drawn at each call."""

    def between(self, layer: nn.Module, h: Tensor) -> Tensor:
        return layer(h) if torch.rand([]) < 0.5 else h


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


class Asking(nn.Module):
    """Asks its inputs between the layers: whether they are valid, whether a mask hides anything,
    and, `choosing`, whether to run a layer more."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = Mlp()

        def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
            return self.mlp(x) if mask is None else self.mlp(x) * mask

    def __init__(self, *, choosing: bool) -> None:
        super().__init__()
        self.stem, self.head, self.more = nn.Linear(6, 12), nn.Linear(12, 4), nn.Linear(12, 12)
        self.layers = nn.ModuleList(self.Layer() for _ in range(3))
        self.choosing = choosing

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if not (x > -9).all():
            raise ValueError("x is out of range")
        h, kept = self.stem(x), None if mask.bool().all() else mask
        if torch.ones(3).bool().any():  # made of numbers alone
            h = h + 1
        for layer in self.layers:
            h = layer(h, kept)
        return self.head(self.more(h) if self.choosing and (mask == 2).any() else h)


def _asking(*, choosing: bool) -> Made:
    rows = torch.linspace(-1, 1, 24).reshape(4, 6)
    return classified(Asking(choosing=choosing), (rows, torch.ones(4, 1, dtype=torch.long)))


def asking() -> Made:
    return _asking(choosing=False)


def asked() -> Made:
    return _asking(choosing=True)


class Halting(nn.Module):
    """A layer that asks inside: whether all is finite, and, `ending`, whether to go on."""

    def __init__(self, *, ending: bool = False) -> None:
        super().__init__()
        self.mlp, self.ending = Mlp(), ending

    def forward(self, x: Tensor) -> Tensor:
        if not (x.abs() < 1e9).all():
            raise ValueError("x is out of range")
        for _ in range(3):
            x = self.mlp(x)
            if self.ending and not (x > 0).any():
                break
        return x


class Borrowing(nn.Module):
    """A head with a bias of its own that reads the stem's weight."""

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(6))

        def forward(self, h: Tensor, of: nn.Linear) -> Tensor:
            return h @ of.weight + self.bias

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 12), self.Head()
        self.layers = nn.ModuleList(Mlp() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(h, self.stem)


class Recasting(Stacked):
    """Routers are kept in fp32 so: the forward moves a layer to the type that it has already."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = Mlp()

        def forward(self, x: Tensor) -> Tensor:
            self.mlp = self.mlp.to(torch.float32)
            return self.mlp(x.to(torch.float32)).to(x.dtype)


class Forwarded(Recasting):
    """The forwards of its layers are called, which no hook sees."""

    def between(self, layer: nn.Module, h: Tensor) -> Tensor:
        return layer.forward(h)


class Sharing(Stacked):
    """Layers that read what the first left in a dictionary of the model's own kind."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = Mlp()

        def forward(self, x: Tensor, shared: UserDict[str, Tensor]) -> Tensor:
            return self.mlp(x) + shared.setdefault("first", x)

    def forward(self, x: Tensor) -> Tensor:
        h, shared = self.stem(x), UserDict[str, Tensor]()
        for layer in self.layers:
            h = layer(h, shared)
        return self.head(h)


class Keeping(Stacked):
    """Layers keep a penalty, which the model adds up behind them, as libraries of experts do."""

    class Layer(Mlp):
        penalty: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = super().forward(x)
            self.penalty = out.square().mean()
            return out

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = super().forward(x)
        return scores + sum(layer.penalty for layer in self.layers)


def compiled() -> Made:
    """torch.compile of the model, and of its layers in both ways."""
    model = Stacked()
    model.layers[0] = torch.compile(model.layers[0])
    model.layers[1].compile()
    return classified(torch.compile(model))


skipped = factory(Skipped)
popping = factory(Popping)
checking = factory(lambda: Stacked(Halting, 2))
halting = factory(lambda: Stacked(lambda: Halting(ending=True), 2))
borrowing = factory(Borrowing)
recasting = factory(Recasting)
forwarded = factory(Forwarded)
sharing = factory(Sharing)
keeping = factory(lambda: Keeping(count=7))
