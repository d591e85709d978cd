"""Small models that draw outside torch, and one whose code remembers tensors of earlier calls."""

from __future__ import annotations

import functools
import random
from types import SimpleNamespace

import numpy
import torch
from torch import Tensor, nn

from tests.executor.module_zoo import Made, Mlp, Stacked, classified, factory


class Masked(Stacked):
    """Before each layer numpy draws what is hidden, as SpecAugment does."""

    def between(self, layer: nn.Module, h: Tensor) -> Tensor:
        hidden = torch.tensor(numpy.random.rand(h.shape[-1]) < 0.5, device=h.device)
        return layer(h.masked_fill(hidden, 0.0))


class Written(Stacked):
    """A mask is written into what a linear layer made, which is a view of its product; a module
    gives a view of its weight back."""

    class Latents(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(12))

        def forward(self, x: Tensor) -> Tensor:
            return self.weight.expand(len(x), 1, -1)

    def __init__(self) -> None:
        super().__init__()
        self.second, self.latents = nn.Linear(12, 12), self.Latents()

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(self.stem(x))
        hidden = torch.tensor(numpy.random.rand(h.shape[1]) < 0.5, device=h.device)
        h[:, hidden] = 0.0
        h = h + self.latents(h)
        for layer in self.layers:
            h = layer(h)
        return self.head(h).mean(1)


class _Scaled(Mlp):
    """Draws of `random`, and of generators of its own, by numpy and by torch."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other = numpy.random.default_rng(), torch.Generator("cpu")

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.rand(x.shape[-1], generator=self.other, device="cpu").to(x.device)
        drawn = random.random() + self.own.random()
        return super().forward(x * drawn + noise)


class Skipping(Stacked):
    """One layer in ten is left out."""

    def between(self, layer: nn.Module, h: Tensor) -> Tensor:
        return h if random.random() < 0.1 else super().between(layer, h)


POSITIONS: dict[int, Tensor] = {}


class Cached(Stacked):
    """Positions that are made once: by a cached function, and in a dictionary of the file's."""

    @staticmethod
    @functools.lru_cache(maxsize=4)
    def _slope(width: int, device: torch.device) -> Tensor:
        return torch.linspace(0.5, 1, width, device=device)

    def between(self, layer: nn.Module, h: Tensor) -> Tensor:
        width = h.shape[-1]
        if width not in POSITIONS:
            POSITIONS[width] = torch.arange(width, device=h.device) / width
        h = h * self._slope(width, h.device) + POSITIONS[width]
        return layer(h)


class Checking(Stacked):
    """Refuses inputs that are too large; `choosing`, it leaves a layer out for them."""

    choosing = False

    def between(self, layer: nn.Module, h: Tensor) -> Tensor:
        if h.max() >= 1e9:
            if self.choosing:
                return h
            raise ValueError("too large")
        return super().between(layer, h)


class Choosing(Checking):
    choosing = True


class Hiding(Stacked):
    """Of a mask that it is given, the layers run on the rows that it leaves."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.stem(x)
        kept = h[~mask].reshape(len(h), -1, h.shape[-1])
        for layer in self.layers:
            kept = layer(kept)
        return self.head(h + kept.mean(1, keepdim=True)).mean(1)


class Decoding(Stacked):
    """As transformers' decoders are configured: layers add what they make to a cache that they are
    given, and leave out numbers by a probability in the configuration."""

    class Layer(Mlp):
        def forward(self, x: Tensor, cache: SimpleNamespace | None = None) -> Tensor:
            if cache is not None:
                cache.rows = torch.cat([cache.rows, x])
                x = x + cache.rows.mean(0)
            return super().forward(x)

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(use_cache=True, residual_dropout=0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        cache = SimpleNamespace(rows=h) if self.config.use_cache else None
        for layer in self.layers:
            h = torch.nn.functional.dropout(layer(h, cache), self.config.residual_dropout)
        return self.head(h)


def hiding() -> Made:
    mask = (torch.arange(8) % 4 == 0).expand(4, 8)
    return classified(Hiding(), (torch.linspace(-1, 1, 192).reshape(4, 8, 6), mask))


masked = factory(Masked)
written = factory(Written, lambda: torch.linspace(-1, 1, 96).reshape(4, 4, 6))
scaled = factory(lambda: Stacked(_Scaled))
skipping = factory(Skipping)
cached = factory(Cached)
decoding = factory(Decoding)
checking = factory(Checking)
choosing = factory(Choosing)
