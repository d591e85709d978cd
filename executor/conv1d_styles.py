"""Tensor parallelism for GPT-2's Conv1D, a linear layer that keeps its weight as [in, out].

torch's ColwiseParallel and RowwiseParallel take nn.Linear alone. Where query, key and value lie
side by side in one weight, the columns are first brought into the order [rank, part, column], so
that each rank's share holds its heads of all three.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from profiles.model.tensor_parallel_rules import FUSED_PARTS, Rule, matches


def conv1d_style(kind: str) -> ParallelStyle:
    """The style of a rule of profiles/model/tensor_parallel_rules.py; `divide` has none."""
    return Conv1dRows() if kind == "row" else Conv1dColumns(FUSED_PARTS[kind])


class Conv1dColumns(ParallelStyle):
    """Splits the output features, in so many parts; takes a whole input, gives its own features."""

    def __init__(self, parts: int) -> None:
        self.parts = parts

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return _distributed(
            module, device_mesh, {"weight": Shard(1), "bias": Shard(0)}, self.parts, Replicate()
        )


class Conv1dRows(ParallelStyle):
    """Splits the input features; takes its own, gives the sum over all ranks."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return _distributed(
            module, device_mesh, {"weight": Shard(0), "bias": Replicate()}, 1, Shard(-1)
        )


def _distributed(
    module: nn.Module,
    mesh: DeviceMesh,
    placements: dict[str, Shard | Replicate],
    parts: int,
    given: Shard | Replicate,
) -> nn.Module:
    def split(name: str, child: nn.Module, mesh: DeviceMesh) -> None:
        for key, p in list(child.named_parameters(recurse=False)):
            ordered = by_rank(p.detach(), parts, mesh.size()) if parts > 1 else p.detach()
            share = distribute_tensor(ordered, mesh, [placements[key]])
            child.register_parameter(key, nn.Parameter(share, requires_grad=p.requires_grad))

    rows = isinstance(given, Shard)
    give: Any = partial(_give, Replicate() if rows else Shard(-1))
    take: Any = partial(_take, given)  # torch's annotation says that these return nothing
    return distribute_module(module, mesh, split, take, give)


def _take(
    given: Shard | Replicate, module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh
) -> tuple[Any, ...]:
    return (DTensor.from_local(inputs[0], mesh, [given], run_check=False), *inputs[1:])


def _give(
    wanted: Shard | Replicate, module: nn.Module, output: DTensor, mesh: DeviceMesh
) -> Tensor:
    given: Tensor = output.redistribute(mesh, [wanted]).to_local()
    return given


def by_rank(x: Tensor, parts: int, tp: int) -> Tensor:
    """The last dimension from [part, rank, column] into [rank, part, column]."""
    split: Tensor = x.unflatten(-1, (parts, tp, -1))
    return split.transpose(-3, -2).flatten(-3).contiguous()


def by_part(name: str, x: Tensor, rules: tuple[Rule, ...], tp: int) -> Tensor:
    """A whole parameter or gradient in the model's own order of columns."""
    path = name.rpartition(".")[0]
    for pattern, kind in rules:
        parts = FUSED_PARTS.get(kind, 1)
        if parts > 1 and tp > 1 and matches(pattern, path):
            return by_rank(x, tp, parts)
    return x
