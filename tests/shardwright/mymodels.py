"""A user's own models: factories in a module of the current folder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Lm(nn.Module):
    def __init__(self, width: int = 16, layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, 64)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Attending(Layer):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (3, 2, -1)).movedim(-3, 0).transpose(2, 3)
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return super().forward(x + self.out(mixed.transpose(1, 2).flatten(2)))


class Sloping(Attending):
    """A learnt slope per head, which tensor parallelism cannot give to its ranks."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.slopes = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).movedim(-3, 0).transpose(2, 3)
        place = torch.arange(x.shape[1], device=x.device)
        bias = -(place[:, None] - place).abs() * self.slopes[:, None, None]
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return Layer.forward(self, x + self.out(mixed.transpose(1, 2).flatten(2)))


class Checkpointing(Lm):
    """Recomputes its layers itself, as many training scripts do."""

    def __init__(self, width: int = 16, layers: int = 3) -> None:
        super().__init__(width, layers)
        self.layers = nn.ModuleList(Attending(width) for _ in range(layers))

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(x)


class NamedOutput(Lm):
    def forward(self, words: Tensor) -> Any:
        return {"logits": super().forward(words)}


def token_loss(logits: Tensor, words: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), words.flatten())


def words() -> Tensor:
    return torch.zeros(2, 32, dtype=torch.long)


def small() -> Any:
    return Lm(), (words(),), words(), token_loss


class Trains(Lm):
    """Computes its loss itself; as nanoGPT returns it, or alone."""

    def __init__(self, *, alone: bool) -> None:
        super().__init__()
        self.alone = alone

    def forward(self, words: Tensor, wanted: Tensor) -> Any:
        logits = super().forward(words)
        loss = token_loss(logits, wanted)
        return loss if self.alone else (logits, loss)


def logits_and_loss() -> Any:
    return Trains(alone=False), (words(), words())


def loss_alone() -> Any:
    return Trains(alone=True), (words(), words()), None, None


def sloping() -> Any:
    model = Lm()
    model.layers = nn.ModuleList(Sloping(16) for _ in range(3))
    return model, (words(),), words(), token_loss


def checkpointing() -> Any:
    return Checkpointing(), (words(),), words(), token_loss


def images() -> Any:
    return Layer(16), (torch.zeros(2, 16),)


def told() -> Any:
    return Layer(16), (torch.zeros(2, 8, 16),), None, lambda x, _: x.float().mean(), 8


def attribute() -> Any:
    return Layer(16), (torch.zeros(2, 4, 16),)


attribute.tokens_per_sample = 4  # type: ignore[attr-defined] # what a user writes


def tuple_of_targets() -> Any:
    return Lm(), (words(),), (words(),), token_loss


def no_loss() -> Any:
    return NamedOutput(), (words(),)
