"""Small models with backward passes of their own between their blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.executor.module_zoo import Stacked, factory
from tests.executor.weight_zoo import Cubed


class Function(Stacked):
    """An autograd function of its own stands between the layers."""

    def between(self, layer: nn.Module, h: Tensor) -> Tensor:
        return Cubed.apply(layer(h) / 4)


class Reentrant(Stacked):
    """Every layer runs inside an autograd function, and again in its backward."""

    def between(self, layer: nn.Module, h: Tensor) -> Tensor:
        return checkpoint(layer, h, use_reentrant=True)


class Kept(Stacked):
    """Every layer runs again in the backward, told by hooks on what autograd saves."""

    def between(self, layer: nn.Module, h: Tensor) -> Tensor:
        return checkpoint(layer, h, use_reentrant=False)


class _Run(torch.autograd.Function):
    """Runs a layer with its own graph, and that graph's backward in its own."""

    @staticmethod
    def forward(ctx: Any, layer: nn.Module, x: Tensor) -> Tensor:
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.made = layer(ctx.x)
        return ctx.made.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        torch.autograd.backward(ctx.made, gradient)
        return None, ctx.x.grad


class Detached(Stacked):
    """The graph ends at every layer, and an autograd function goes on from there."""

    def between(self, layer: nn.Module, h: Tensor) -> Tensor:
        return _Run.apply(layer, h)


function, reentrant, kept, detached = map(factory, (Function, Reentrant, Kept, Detached))
