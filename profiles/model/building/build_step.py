"""A module of a factory with keyword arguments, its inputs, targets and loss, as shapes.

Only `package.module:function` as the user wrote it is imported. Weights get no storage; small
tables that a constructor counts with (`linspace`, `arange`, `tensor`) keep their values until the
module is made, so that it may ask for them.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from profiles.errors import ModelError

_WANTED = "(module, inputs, targets, loss_fn)"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenStep:
    """What a factory returned, on meta: loss_fn(module(*inputs), targets) is one number."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    targets: Any
    loss_fn: Callable[[Any, Any], Any]


def build_step(
    factory: str, arguments: Mapping[str, Any], *, weights: str, channels_last: bool
) -> GivenStep:
    """The module that `factory(**arguments)` returns, in training mode, on meta.

    weights  torch type of parameters and floating-point inputs; batch norms stay float32
    channels_last  weights and inputs of four or five dimensions lie with channels innermost
    Raises ModelError, naming the factory, where it cannot be imported, fails, or returns else.
    """
    function = _imported(factory)
    said = f"{factory}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"
    try:
        with _ShapesOfWeights():
            made = function(**arguments)
    except Exception as error:
        raise ModelError(f"{said} failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, tuple) or len(made) != 4 or not isinstance(made[0], nn.Module):
        raise ModelError(f"{said} must return {_WANTED}, returned {type(made).__name__}")
    module, inputs, targets, loss_fn = made
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, tuple) or not all(isinstance(x, Tensor) for x in inputs):
        raise ModelError(f"{said}: inputs must be a tuple of tensors")
    kind = getattr(torch, weights)
    module.train()
    _to_meta(module, kind)
    inputs = tuple(_shape_of(x, kind) for x in inputs)
    if channels_last:
        inputs = tuple(map(_channels_last, inputs))
        for p in module.parameters():
            p.data = _channels_last(p.data)
    return GivenStep(
        module=module,
        inputs=inputs,
        targets=tree_map_only(Tensor, functools.partial(_shape_of, kind=kind), targets),
        loss_fn=loss_fn,
    )


def _imported(factory: str) -> Callable[..., Any]:
    module_name, _, function = factory.partition(":")
    if not module_name or not function:
        raise ModelError(f"factory {factory!r} must be package.module:function")
    try:
        found = getattr(importlib.import_module(module_name), function)
    except AttributeError as error:
        raise ModelError(f"{factory}: {module_name} has no {function!r}") from error
    except Exception as error:
        raise ModelError(
            f"{factory}: cannot import {module_name!r}: {type(error).__name__}: {error}. The "
            "current folder and the table's are on the import path"
        ) from error
    if not callable(found):
        raise ModelError(f"{factory}: is a {type(found).__name__}, no function")
    return found  # type: ignore[no-any-return] # the user's


_CREATED = frozenset(
    {
        torch.empty,
        torch.empty_strided,
        torch.eye,
        torch.full,
        torch.ones,
        torch.rand,
        torch.randint,
        torch.randn,
        torch.randperm,
        torch.zeros,
    }
)


class _ShapesOfWeights(TorchFunctionMode):
    """Inside it tensors that are filled by a rule get no storage."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _CREATED and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


def _to_meta(module: nn.Module, kind: torch.dtype) -> None:
    """Parameters, buffers and other tensors of a module without storage; shared stay shared."""
    known: dict[int, tuple[Tensor, Tensor]] = {}

    def convert(x: Tensor, own: torch.dtype) -> Tensor:
        if id(x) not in known:
            made = _shape_of(x.detach(), own)
            if isinstance(x, nn.Parameter):
                made = nn.Parameter(made, requires_grad=x.requires_grad)
            known[id(x)] = (x, made)
        return known[id(x)][1]

    for part in module.modules():
        normalises = isinstance(part, nn.modules.batchnorm._BatchNorm)
        own = torch.float32 if normalises else kind
        for name, p in part._parameters.items():
            if p is not None:
                if nn.parameter.is_lazy(p):
                    raise ModelError(
                        f"{type(part).__name__}: parameter {name} has no shape yet; call the "
                        "module once in the factory, or give its sizes"
                    )
                part._parameters[name] = convert(p, own)  # type: ignore[assignment] # a Parameter
        for name, x in part._buffers.items():
            if x is not None:
                part._buffers[name] = convert(x, own)
        for name, x in list(vars(part).items()):
            if isinstance(x, Tensor):
                setattr(part, name, convert(x, own))


def _shape_of(x: Tensor, kind: torch.dtype) -> Tensor:
    """The tensor on meta, of type `kind` where it is of float32 or float64."""
    change = x.dtype in (torch.float32, torch.float64)
    return torch.empty_like(x, dtype=kind if change else x.dtype, device="meta")


def _channels_last(x: Tensor) -> Tensor:
    if x.dim() == 4:
        return x.to(memory_format=torch.channels_last)
    return x.to(memory_format=torch.channels_last_3d) if x.dim() == 5 else x
