"""Sums over ranks: of a bias that counts once, and of a normalization over a cut batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: bool) -> Tensor:
        return x.clone() if counts else torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


def once(x: Tensor, counts: bool) -> Tensor:
    """x on the rank with `counts`, zeros elsewhere; the gradient is whole on every rank.

    For a tensor added to a sum over ranks: each rank has the gradient of the sum, which is that of
    x, without communication.
    """
    made: Tensor = _Once.apply(x, counts)  # type: ignore[no-untyped-call] # torch's
    return made


class _SynchronisedNorm(torch.autograd.Function):
    """(x - mean) / sqrt(variance + epsilon) over a batch that is cut over ranks.

    One sum of two numbers per channel each way (Ioffe and Szegedy, arXiv 1502.03167, section 3, for
    the gradient).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: Any, ranks: int, epsilon: float) -> Tensor:
        dims = (0, *range(2, x.dim()))
        sums = torch.stack([x.mean(dim=dims), x.square().mean(dim=dims)]) / ranks
        for group in groups:
            dist.all_reduce(sums, group=group)
        shape = (1, -1, *(1,) * (x.dim() - 2))
        mean, square = sums[0].view(shape), sums[1].view(shape)
        inverse = (square - mean.square() + epsilon).rsqrt()
        made = (x - mean) * inverse
        ctx.save_for_backward(made, inverse)
        ctx.groups, ctx.ranks, ctx.dims = groups, ranks, dims
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        made, inverse = ctx.saved_tensors
        sums = torch.stack([gradient.mean(dim=ctx.dims), (gradient * made).mean(dim=ctx.dims)])
        sums = sums / ctx.ranks
        for group in ctx.groups:
            dist.all_reduce(sums, group=group)
        first, second = sums[0].view(inverse.shape), sums[1].view(inverse.shape)
        return (gradient - first - made * second) * inverse, None, None, None


def synchronised_norm(
    x: Tensor, groups: list[dist.ProcessGroup], ranks: int, epsilon: float
) -> Tensor:
    """x [batch, channels, ...] normalised over the whole batch; equal parts on every rank."""
    made: Tensor = _SynchronisedNorm.apply(x, groups, ranks, epsilon)  # type: ignore[no-untyped-call] # torch's
    return made
