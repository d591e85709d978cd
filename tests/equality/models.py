"""Small models as factories: alike blocks, unlike blocks, branches and tied weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

TOKENS, WORDS = 64, 256


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (
            part(x).view(batch, tokens, self.heads, -1).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(mixed.transpose(1, 2).reshape(batch, tokens, -1))


class Layer(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, 4)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Lm(nn.Module):
    """A language model; `inner` holds one feed-forward width per layer."""

    def __init__(self, inner: tuple[int, ...], width: int = 64, *, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(Layer(width, each) for each in inner)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, WORDS, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Towers(nn.Module):
    """Two towers of layers that a head joins."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.left = nn.ModuleList(Layer(width, 128) for _ in range(2))
        self.right = nn.ModuleList(Layer(width, 256) for _ in range(2))
        self.head = nn.Linear(2 * width, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        left = right = x
        for layer in self.left:
            left = layer(left)
        for layer in self.right:
            right = layer(right)
        return self.head(torch.cat((left, right), dim=-1))


def token_loss(logits: Tensor, words: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), words.flatten())


def _made(module: nn.Module, batch: int) -> Any:
    words = torch.zeros(batch, TOKENS, dtype=torch.long)
    return module, (words,), words, token_loss


def alike(batch: int = 2) -> Any:
    return _made(Lm((256,) * 4), batch)


def tied(batch: int = 2) -> Any:
    return _made(Lm((256,) * 4, tied=True), batch)


def wide(batch: int = 2) -> Any:
    """As wide and deep as GPT-2 medium, so that it is planned as a layout."""
    return _made(Lm((4096,) * 24, 1024), batch)


def wide_tied(batch: int = 2) -> Any:
    return _made(Lm((4096,) * 24, 1024, tied=True), batch)


def unlike(batch: int = 2) -> Any:
    return _made(Lm((128, 256, 512, 256)), batch)


def towers(batch: int = 2) -> Any:
    return _made(Towers(), batch)


for _factory in (alike, tied, wide, wide_tied, unlike, towers):
    _factory.tokens_per_sample = TOKENS  # type: ignore[attr-defined] # an attribute of a function
