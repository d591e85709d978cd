"""Models whose weights are spread unevenly over their units, as factories."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.executor.module_zoo import Made, Mlp

TOKENS = 16


class Worded(nn.Module):
    """Tables of words that are added, layers, a head."""

    def __init__(
        self, tables: tuple[int, ...], width: int, layers: int, classes: int, *, tied: bool = False
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for rows in tables)
        self.layers = nn.ModuleList(Mlp(width) for _ in range(layers))
        self.head = nn.Linear(width, classes, bias=not tied)
        if tied:
            self.head.weight = self.tables[0].weight

    def forward(self, words: Tensor) -> Tensor:
        h = sum(table(words % table.num_embeddings) for table in self.tables)
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


def _worded(module: Worded) -> Made:
    words = torch.arange(8 * TOKENS).reshape(8, TOKENS)

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(output.flatten(0, 1), targets.flatten())

    return module, (words,), words % 50, loss


def table() -> Made:
    """One table is nearly all of it."""
    return _worded(Worded((20_000,), 64, 3, 50))


def two_tables() -> Made:
    """Two tables in the first block, as a recommender has them."""
    return _worded(Worded((12_000, 18_000), 64, 3, 50))


def table_and_head() -> Made:
    return _worded(Worded((10_000,), 64, 3, 10_000))


def tied_table() -> Made:
    return _worded(Worded((10_000,), 64, 3, 10_000, tied=True))


def even() -> Made:
    """Equal layers are most of it."""
    return _worded(Worded((500,), 256, 6, 50))


def uneven() -> Made:
    """Linear layers of very different sizes."""
    sizes = (64, 256, 2048, 512, 1024, 128, 64)
    pairs = pairwise(sizes)
    module = nn.Sequential(*(nn.Sequential(nn.Linear(m, n), nn.ReLU()) for m, n in pairs))
    rows = torch.linspace(-1, 1, 8 * 64).reshape(8, 64)
    return module, (rows,), torch.arange(8), nn.CrossEntropyLoss()
