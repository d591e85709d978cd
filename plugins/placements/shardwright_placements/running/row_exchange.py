"""Exchange of rows between ranks: dispatch of experts, and matmuls with groups of unequal size.

Placements split rows evenly, but routing does not. So the grouped matmul of experts sends rows at
the boundaries to the ranks of their experts and back. The plan assumes balanced routing: these
messages are not part of it and are counted separately.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from shardwright_placements.running.shard_position import Position

Unplanned = Callable[[str], AbstractContextManager[None]]


def _all_to_all(x: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
    made = x.new_empty((sum(received), *x.shape[1:]))
    dist.all_to_all_single(made, x.contiguous(), received, sent, group=group)
    return made


class _Moved(torch.autograd.Function):
    """Sends rows to their ranks; the backward sends their gradients back."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, sent: list[int], received: list[int], group: Any, unplanned: Any
    ) -> Tensor:
        ctx.way = (sent, received, group, unplanned)
        return _all_to_all(x, sent, received, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        sent, received, group, unplanned = ctx.way
        if unplanned is None:
            return _all_to_all(gradient, received, sent, group), None, None, None, None
        with unplanned("rebalancing"):
            return _all_to_all(gradient, received, sent, group), None, None, None, None


def _moved(x: Tensor, sent: list[int], received: list[int], group: Any, unplanned: Any) -> Tensor:
    made: Tensor = _Moved.apply(x, sent, received, group, unplanned)  # type: ignore[no-untyped-call] # torch's
    return made


def exchanged_rows(x: Tensor, index: Tensor, position: Position, axis: int) -> Tensor:
    """x[index], where x and the result are split by rows on the axis, and `index` is whole."""
    ranks, own = position.sizes[axis], position.coordinates[axis]
    held, share = x.shape[0], index.shape[0] // ranks
    by_rank = index.view(ranks, share)
    # Rows that each rank needs from this one, in the order of its result.
    wanted = [row[(row // held) == own] - own * held for row in by_rank]
    mine = by_rank[own]
    source = mine // held
    order = torch.argsort(source, stable=True)
    received = torch.bincount(source, minlength=ranks).tolist()
    rows = x.index_select(0, torch.cat(wanted))
    arrived = _moved(rows, [len(w) for w in wanted], received, position.mesh.get_group(axis), None)
    return arrived.index_select(0, torch.argsort(order))


def grouped_product(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Rows [.., k] of each group times its weight [k, n]; `ends` are the groups' last rows + 1.

    Like torch's grouped matmul, but in any precision and on any device.
    """
    parts, first = [], 0
    for number, end in enumerate(ends.tolist()):
        parts.append(x[first:end] @ weight[number])
        first = end
    if first < x.shape[0]:
        parts.append(x.new_zeros(x.shape[0] - first, weight.shape[2]))
    return torch.cat(parts)


def balanced_product(
    x: Tensor,
    weight: Tensor,
    ends: Tensor,
    position: Position,
    axes: tuple[int, ...],
    unplanned: Unplanned,
) -> Tensor:
    """The grouped matmul with rows and experts split evenly on the axes: rows are sent to the ranks
    of their experts and back."""
    ranks, own = 1, 0
    for axis in axes:
        own = own * position.sizes[axis] + position.coordinates[axis]
        ranks *= position.sizes[axis]
    # All axes of the mesh: all processes, in the order of their ranks.
    group = position.mesh.get_group(axes[0]) if len(axes) == 1 else dist.group.WORLD
    share, experts, total = x.shape[0], weight.shape[0], x.shape[0] * ranks
    edges = [0, *(int(ends[(rank + 1) * experts - 1]) for rank in range(ranks))]
    edges[-1] = total
    places = [rank * share for rank in range(ranks + 1)]

    def overlap(a: tuple[int, int], b: tuple[int, int]) -> int:
        return max(0, min(a[1], b[1]) - max(a[0], b[0]))

    here = (places[own], places[own + 1])
    work = (edges[own], edges[own + 1])
    sent = [overlap(here, (edges[r], edges[r + 1])) for r in range(ranks)]
    received = [overlap(work, (places[r], places[r + 1])) for r in range(ranks)]
    rows = _moved(x, sent, received, group, unplanned)
    own_ends = ends[own * experts : (own + 1) * experts] - edges[own]
    made = grouped_product(rows, weight, own_ends)
    return _moved(made, received, sent, group, unplanned)
