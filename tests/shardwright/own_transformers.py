"""GPTs as users write them: their widths are those of GPT-2, the rest is their own."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LAYERS, WIDTH, HEADS, TOKENS, WORDS = 24, 1024, 16, 1024, 32_000


class Layer(nn.Module):
    """`own`: of `squared` (ReLU, squared), `turned` (queries and keys rotated op by op), `written`
    (attention by products and a softmax) and `side` (attention next to the feed-forward)."""

    def __init__(self, own: str = "") -> None:
        super().__init__()
        self.own = own
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def attended(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).split(WIDTH, -1)
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in parts)
        if self.own == "turned":
            q, k = turned(q), turned(k)
        if self.own == "written":
            past = torch.ones(*2 * x.shape[1:2], dtype=torch.bool, device=x.device).tril()
            scores = (q @ k.mT / 8).masked_fill(~past, float("-inf"))
            mixed = scores.softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        made: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return made

    def fed(self, x: Tensor) -> Tensor:
        y = self.up(x)
        made: Tensor = self.down(F.relu(y).square() if self.own == "squared" else F.gelu(y))
        return made

    def forward(self, x: Tensor) -> Tensor:
        if self.own == "side":
            return x + self.attended(self.first(x)) + self.fed(self.second(x))
        x = x + self.attended(self.first(x))
        return x + self.fed(self.second(x))


def turned(x: Tensor) -> Tensor:
    angles = torch.outer(*(torch.arange(n, device=x.device).float() for n in (x.shape[-2], 32)))
    sin, cos = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Gpt(nn.Module):
    def __init__(self, own: str) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList(Layer(own) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for layer in self.layers:
            x = layer(x)
        made: Tensor = self.head(self.norm(x))
        return made


def loss_in_fp32(logits: Tensor, words: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), words.flatten())


def loss_in_bf16(logits: Tensor, words: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), words.flatten())


def _made(own: str = "", loss: Any = loss_in_fp32) -> tuple[Any, ...]:
    words = torch.zeros(2, TOKENS, dtype=torch.long)
    return Gpt(own), words, words, loss


like_gpt2 = _made
nanogpt = functools.partial(_made, loss=loss_in_bf16)
squared, turned_keys, written, side = (
    functools.partial(_made, own) for own in ("squared", "turned", "written", "side")
)
