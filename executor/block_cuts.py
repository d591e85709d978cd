"""The moment when the gradients of a cut between two blocks have arrived: `through_cut`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from profiles.hardware.probe.cpu_clock import ClockReading


class _Cut(torch.autograd.Function):
    """Identity; its backward notes the time of cut number `index` of its micro-batch."""

    @staticmethod
    def forward(
        ctx: Any,
        index: int,
        readings: dict[int, ClockReading],
        now: Callable[[], ClockReading],
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.index, ctx.readings, ctx.now = index, readings, now
        ctx.set_materialize_grads(False)
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.readings[ctx.index] = ctx.now()
        return (None, None, None, *gradients)


def through_cut(
    arguments: Any, index: int, readings: dict[int, ClockReading], now: Callable[[], ClockReading]
) -> Any:
    """The arguments, with all tensors that have a gradient passed through one identity.

    readings  its backward stores `now()` there under `index`, once all the gradients have arrived
    """
    leaves, structure = pytree.tree_flatten(arguments)
    # Parameters belong to both sides.
    positions = [
        i
        for i, x in enumerate(leaves)
        if isinstance(x, Tensor) and x.requires_grad and not isinstance(x, nn.Parameter)
    ]
    if positions:
        passed = _Cut.apply(index, readings, now, *(leaves[i] for i in positions))  # type: ignore[no-untyped-call] # torch's
        for position, tensor in zip(positions, passed, strict=True):
            leaves[position] = tensor
    return pytree.tree_unflatten(leaves, structure)
