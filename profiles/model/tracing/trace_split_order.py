"""The order of features in a weight that is split over ranks in several parts.

Where query, key and value lie side by side in one weight, a rank holds its share of all three: the
features are brought into the order [rank, part, feature] and then split evenly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from profiles.model.building.tensor_parallel_rules import (
    Rule,
    UnevenSizeError,
    matches,
    split_of,
)


def part_sizes(size: int, parts: tuple[int, ...], tp: int) -> list[int]:
    """Features of each part; raises UnevenSizeError where they or their shares are uneven."""
    unit, rest = divmod(size, sum(parts))
    sizes = [unit * part for part in parts]
    if rest or any(n % tp for n in sizes):
        of = f" {len(parts)} parts of" if len(parts) > 1 else ""
        raise UnevenSizeError(f"tp={tp} does not divide{of} {size}")
    return sizes


def by_rank(x: Tensor, parts: tuple[int, ...], tp: int, dim: int) -> Tensor:
    """Dimension `dim` from [part, rank, feature] into [rank, part, feature]."""
    if len(parts) == 1 or tp == 1:
        return x
    cut = [part.chunk(tp, dim) for part in x.split(part_sizes(x.shape[dim], parts, tp), dim)]
    return torch.cat([part[rank] for rank in range(tp) for part in cut], dim)


def by_part(x: Tensor, parts: tuple[int, ...], tp: int, dim: int) -> Tensor:
    """The inverse of by_rank."""
    if len(parts) == 1 or tp == 1:
        return x
    sizes = [n // tp for n in part_sizes(x.shape[dim], parts, tp)]
    cut = [share.split(sizes, dim) for share in x.chunk(tp, dim)]
    return torch.cat([share[part] for part in range(len(parts)) for share in cut], dim)


def share_of(x: Tensor, parts: tuple[int, ...], tp: int, rank: int, dim: int) -> Tensor:
    """What a rank holds of dimension `dim`."""
    sizes = part_sizes(x.shape[dim], parts, tp)
    return torch.cat([part.chunk(tp, dim)[rank] for part in x.split(sizes, dim)], dim)


def own_order(
    name: str, x: Tensor, rules: tuple[Rule, ...], tp: int, *, transposed: bool
) -> Tensor:
    """A whole parameter or gradient in the model's own order of features.

    transposed  the layer keeps its weight as [in, out]
    """
    path, _, key = name.rpartition(".")
    for pattern, kind in rules:
        side, parts = split_of(kind)
        if len(parts) > 1 and matches(pattern, path):
            if key == "bias":
                return by_part(x, parts, tp, 0) if side == "column" else x
            return by_part(x, parts, tp, split_dim(side, transposed))
    return x


def split_dim(side: str, transposed: bool) -> int:
    """The dimension of the weight that a `column` or `row` layer splits."""
    return int((side == "column") == transposed)
