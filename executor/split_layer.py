"""Tensor parallelism of a linear layer, split by columns or by rows.

Unlike torch's ColwiseParallel and RowwiseParallel it takes layers that keep their weight as
[in, out] (GPT-2's Conv1D), and those in whose weight query, key and value lie side by side: their
features are first brought into the order [rank, part, feature], so that each rank's share holds its
heads of all three.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from profiles.model.building.tensor_parallel_rules import is_transposed
from profiles.model.tracing.trace_tensor_parallel import by_rank, split_dim


class SplitLayer(ParallelStyle):
    """A linear layer split by `column` or `row`, in parts.

    By column it takes a whole input and gives its own features; by row it takes its own features
    and gives the sum over all ranks.
    """

    def __init__(self, side: str, parts: tuple[int, ...]) -> None:
        self.side, self.parts = side, parts

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        dim = split_dim(self.side, is_transposed(module))
        columns = self.side == "column"

        def split(name: str, child: nn.Module, mesh: DeviceMesh) -> None:
            for key, p in list(child.named_parameters(recurse=False)):
                own = dim if key == "weight" else 0
                held = key == "weight" or columns
                ordered = p.detach()
                if held:
                    ordered = by_rank(ordered, self.parts, mesh.size(), own).contiguous()
                share = distribute_tensor(ordered, mesh, [Shard(own) if held else Replicate()])
                child.register_parameter(key, nn.Parameter(share, requires_grad=p.requires_grad))

        give: Any = partial(_give, Shard(-1) if columns else Replicate())
        take: Any = partial(_take, Replicate() if columns else Shard(-1))
        # torch's annotations say that these two return nothing.
        return distribute_module(module, device_mesh, split, take, give)


def _take(
    given: Shard | Replicate, module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh
) -> tuple[Any, ...]:
    return (DTensor.from_local(inputs[0], mesh, [given], run_check=False), *inputs[1:])


def _give(
    wanted: Shard | Replicate, module: nn.Module, output: DTensor, mesh: DeviceMesh
) -> Tensor:
    shared = output.redistribute(mesh, [wanted]).to_local()
    given: Tensor = _Owned.apply(shared)  # type: ignore[no-untyped-call]  # torch's own is untyped
    return given


class _Owned(torch.autograd.Function):
    """A tensor that is no view. What `to_local` gives is one, made inside an autograd function, and
    autograd lets nobody change such a view in place: an activation with `inplace=True` behind the
    layer would fail."""

    @staticmethod
    def forward(ctx: Any, given: Tensor) -> Tensor:
        """The same memory, with a counter of changes of its own."""
        return given.data

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """The gradient as it is."""
        return gradients[0]
