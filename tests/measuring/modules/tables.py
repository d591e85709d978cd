"""Modules of tables, graphs and points, as factories: embeddings, scatter, sorting."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.measuring.modules.made import Made, labels


class Recommender(nn.Module):
    """Embeddings of categories, products of pairs, two perceptrons (Naumov et al., 1906.00091)."""

    def __init__(self, tables: int = 12, rows: int = 8000, width: int = 32) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(width + pairs, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()
        )
        self.head = nn.Linear(128, 1)
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        x = self.bottom(numbers)
        rows = [x] + [table(categories[:, i]) for i, table in enumerate(self.tables)]
        stacked = torch.stack(rows, dim=1)
        products = stacked @ stacked.transpose(1, 2)
        chosen = products[:, self.pairs[0], self.pairs[1]]
        return self.head(self.top(torch.cat([x, chosen], dim=1))).squeeze(1)


def recommender() -> Made:
    categories = torch.arange(256 * 12).reshape(256, 12) * 37 % 8000
    inputs = (torch.randn(256, 13), categories)
    return Recommender(), inputs, (torch.arange(256) % 2).float(), nn.BCEWithLogitsLoss()


class Graph(nn.Module):
    """Messages along edges, gathered and added up, the same edges in every sample."""

    def __init__(self, width: int = 64, depth: int = 4, nodes: int = 200, edges: int = 1600):
        super().__init__()
        self.stem = nn.Linear(16, width)
        self.send = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.keep = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.head = nn.Linear(width, 1)
        self.register_buffer("source", torch.arange(edges) * 17 % nodes)
        self.register_buffer("sink", torch.arange(edges) * 29 % nodes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for send, keep in zip(self.send, self.keep, strict=True):
            ends = torch.cat([x[:, self.source], x[:, self.sink]], dim=-1)
            told = torch.zeros_like(x).index_add(1, self.sink, torch.relu(send(ends)))
            x = x + torch.relu(keep(torch.cat([x, told], dim=-1)))
        return self.head(x).mean(dim=(1, 2))


def graph() -> Made:
    return Graph(), (torch.randn(8, 200, 16),), torch.zeros(8), nn.MSELoss()


class Points(nn.Module):
    """Points with their nearest neighbours (Qi et al., arXiv 1706.02413)."""

    def __init__(self, near: int = 8) -> None:
        super().__init__()
        self.near = near
        self.first = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 128), nn.ReLU())
        self.second = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256))
        self.head = nn.Linear(256, 40)

    def forward(self, points: Tensor) -> Tensor:
        away = torch.cdist(points, points)
        chosen = away.topk(self.near, dim=-1, largest=False).indices
        batch = torch.arange(points.shape[0], device=points.device)[:, None, None]
        around = points[batch, chosen]
        here = points[:, :, None].expand_as(around)
        local = self.first(torch.cat([here, around - here], dim=-1)).amax(dim=2)
        return self.head(self.second(local).amax(dim=1))


def points() -> Made:
    return Points(), (torch.randn(4, 256, 3),), labels(4, 40), nn.CrossEntropyLoss()
