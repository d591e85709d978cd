"""A module of a factory with keyword arguments, its inputs, targets and loss, as shapes.

Weights get no storage; small tables that a constructor computes with (`linspace`, `arange`,
`tensor`) keep their values until the module is complete.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from profiles.errors import ModelError
from profiles.model.building.build import BuiltModel, imported, refuse_lazy, to_meta

_RESULT = "(module, inputs, targets, loss_fn)"


def build_step(
    factory: str, arguments: Mapping[str, Any], *, weights: str, channels_last: bool
) -> BuiltModel:
    """The module that `factory(**arguments)` returns, in training mode, on meta: its loss_fn of the
    output and the targets is one number.

    weights  torch type of parameters and floating-point inputs; batch norms stay float32
    channels_last  memory format of weights and inputs of four or five dimensions
    Raises ModelError, with the factory's name, if it cannot be imported, fails, or returns another
    type.
    """
    function = imported(factory)
    call = f"{factory}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"
    try:
        with _ShapesOfWeights():
            made = function(**arguments)
    except Exception as error:
        raise ModelError(f"{call} failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, tuple) or len(made) != 4 or not isinstance(made[0], nn.Module):
        raise ModelError(f"{call} must return {_RESULT}, returned {type(made).__name__}")
    module, inputs, targets, loss_fn = made
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, tuple) or not all(isinstance(x, Tensor) for x in inputs):
        raise ModelError(f"{call}: inputs must be a tuple of tensors")
    kind = getattr(torch, weights)
    module.train()
    refuse_lazy(module, factory)
    _to_meta(module, kind)
    inputs = tuple(_shape_of(x, kind) for x in inputs)
    if channels_last:
        inputs = tuple(map(_channels_last, inputs))
        for p in module.parameters():
            p.data = _channels_last(p.data)
    return BuiltModel(
        module=module,
        args=inputs,
        targets=tree_map_only(Tensor, functools.partial(_shape_of, kind=kind), targets),
        call=operator.call,
        loss_fn=loss_fn,
    )


_FILLING = ("empty", "empty_strided", "eye", "full", "ones", "rand", "randint", "randn", "zeros")
_CREATED = {torch.randperm, *(getattr(torch, name) for name in _FILLING)}


class _ShapesOfWeights(TorchFunctionMode):
    """Within the context, newly filled tensors have no storage."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _CREATED and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


def _to_meta(module: nn.Module, kind: torch.dtype) -> None:
    """Remove the storage of a module's tensors; shared tensors stay shared."""

    def convert(part: nn.Module, x: Tensor) -> Tensor:
        normalises = isinstance(part, nn.modules.batchnorm._BatchNorm)
        return _shape_of(x.detach(), torch.float32 if normalises else kind)

    to_meta(module, buffers=True, convert=convert)
    for part in module.modules():
        for name, x in list(vars(part).items()):
            if isinstance(x, Tensor):
                setattr(part, name, convert(part, x))


def _shape_of(x: Tensor, kind: torch.dtype) -> Tensor:
    """The tensor on meta, with float32 and float64 converted to `kind`."""
    change = x.dtype in (torch.float32, torch.float64)
    return torch.empty_like(x, dtype=kind if change else x.dtype, device="meta")


def _channels_last(x: Tensor) -> Tensor:
    if x.dim() == 4:
        return x.to(memory_format=torch.channels_last)
    return x.to(memory_format=torch.channels_last_3d) if x.dim() == 5 else x
