"""Tensor parallelism for tracing: the weights as one of tp ranks holds them.

A column-split linear layer holds a share of the output features, a row-split one of the input
features (Megatron-LM, arXiv 1909.08053, section 3). The model then runs on local shapes by itself;
the all-reduces are noted by trace.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from profiles.errors import TraceError
from profiles.model.building.build import BuiltModel
from profiles.model.building.tensor_parallel_rules import (
    UnevenSizeError,
    is_transposed,
    matches,
    split_of,
)
from profiles.model.tracing.trace_local_sizes import use_local_sizes
from profiles.model.tracing.trace_split_order import part_sizes, split_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Which modules are split, and the full shape of each split parameter."""

    tp: int
    rules: dict[str, str] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)

    def rule_of(self, path: str) -> str:
        """`column`, `row` or ""."""
        return self.rules.get(path, "")

    def full_shape(self, name: str, local: tuple[int, ...]) -> tuple[tuple[int, ...], int | None]:
        """The shape over the whole tp group, and the split dimension."""
        dim = self.dims.get(name)
        if dim is None:
            return local, None
        return tuple(n * self.tp if i == dim else n for i, n in enumerate(local)), dim


def shard(built: BuiltModel, tp: int) -> Sharding:
    """Replace the split layers' meta weights by one rank's share; raises TraceError if uneven."""
    if tp == 1:
        return Sharding(tp=1)
    rules: dict[str, str] = {}
    dims: dict[str, int] = {}
    for path, module in built.module.named_modules():
        for pattern, kind in built.tensor_parallel:
            side, parts = split_of(kind)
            if side and matches(pattern, path):
                rules[path] = side
                _shard_layer(path, module, side, parts, tp, dims)
    use_local_sizes(built.module, built.tensor_parallel, tp)
    return Sharding(tp=tp, rules=rules, dims=dims)


def _shard_layer(
    path: str, module: nn.Module, side: str, parts: tuple[int, ...], tp: int, dims: dict[str, int]
) -> None:
    weight, bias = module.get_parameter("weight"), module._parameters.get("bias")
    transposed = is_transposed(module)
    dim = split_dim(side, transposed)
    size = weight.shape[dim]
    try:
        part_sizes(size, parts, tp)
    except UnevenSizeError as error:
        raise TraceError(f"{path}.weight, dimension {dim}: {error}") from error
    shape = list(weight.shape)
    shape[dim] //= tp
    module._parameters["weight"] = _empty(weight, tuple(shape))
    dims[f"{path}.weight"] = dim
    columns = side == "column"
    if columns and bias is not None:
        module._parameters["bias"] = _empty(bias, (size // tp,))
        dims[f"{path}.bias"] = 0
    names = ("nx", "nf") if transposed else ("in_features", "out_features")
    setattr(module, names[columns], size // tp)


def _empty(like: torch.Tensor, shape: tuple[int, ...]) -> nn.Parameter:
    made = torch.empty(shape, dtype=like.dtype, device=like.device)
    return nn.Parameter(made, requires_grad=like.requires_grad)
