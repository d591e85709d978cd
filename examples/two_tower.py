"""A two-tower model (Covington et al., RecSys 2016; images against texts as in Radford et al.,
arXiv 2103.00020) as a factory for Shardwright: one tower reads images, the other token sequences,
and the scaled dot product of both says whether they belong together.

The loss is that of single pairs, so a batch may be split into micro-batches.

shardwright fit examples.two_tower:build --precision fp32
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ImageTower(nn.Module):
    """Convolutions with residuals, pooled to one vector per image."""

    def __init__(self, width: int, depth: int, out: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, stride=4)
        self.blocks = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(depth))
        self.head = nn.Linear(width, out)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.head(x.mean(dim=(2, 3)))


class TextTower(nn.Module):
    """A transformer encoder over token embeddings, averaged to one vector per text."""

    def __init__(self, vocabulary: int, width: int, depth: int, out: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, out)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(dim=1))


class TwoTower(nn.Module):
    """One number per pair: how much the image and the text belong together."""

    def __init__(self, width: int = 64, depth: int = 4, out: int = 32) -> None:
        super().__init__()
        self.image = ImageTower(width, depth, out)
        self.text = TextTower(1000, width, depth, out)
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        seen = nn.functional.normalize(self.image(images), dim=-1)
        read = nn.functional.normalize(self.text(tokens), dim=-1)
        return self.scale * (seen * read).sum(dim=-1)


def build() -> tuple[nn.Module, tuple[Tensor, ...], Tensor, nn.Module]:
    """The module with four pairs, whether each belongs together, and the loss."""
    images = torch.linspace(-1, 1, 4 * 3 * 32 * 32).reshape(4, 3, 32, 32)
    tokens = torch.arange(4 * 16).reshape(4, 16) % 1000
    return (
        TwoTower(),
        (images, tokens),
        torch.tensor([1.0, 0.0, 1.0, 0.0]),
        nn.BCEWithLogitsLoss(),
    )
