"""Losses and normalizations with sums over ranks."""

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


class _ClassParallelLoss(torch.autograd.Function):
    """Mean cross entropy of logits whose classes are cut over ranks.

    Maximum, sum of exponentials and target logit are all-reduced; the backward sends nothing
    (Megatron-LM, arXiv 1909.08053, section 3; vocab_parallel_cross_entropy).
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, groups: Any) -> Tensor:
        classes = logits.shape[1]
        highest = logits.max(dim=1).values
        for group in groups:
            dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
        powers = (logits - highest.unsqueeze(1)).exp()
        total = powers.sum(dim=1)
        mine = (targets >= 0) & (targets < classes)
        index = torch.where(mine, targets, 0).unsqueeze(1)
        target = torch.where(mine, logits.gather(1, index).squeeze(1), 0.0)
        for summed in (total, target):
            for group in groups:
                dist.all_reduce(summed, group=group)
        shares = powers / total.unsqueeze(1)
        ctx.save_for_backward(shares, index, mine)
        return (total.log() + highest - target).mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        shares, index, mine = ctx.saved_tensors
        made = shares.scatter_add(1, index, -mine.to(shares.dtype).unsqueeze(1))
        return made * (gradient / shares.shape[0]), None, None


def class_parallel_loss(logits: Tensor, targets: Tensor, groups: list[dist.ProcessGroup]) -> Tensor:
    """Mean cross entropy; `targets` are relative to the rank's first class."""
    made: Tensor = _ClassParallelLoss.apply(logits, targets, groups)  # type: ignore[no-untyped-call] # torch's
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
