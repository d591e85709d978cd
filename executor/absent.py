"""What stands in a stage where a module of another stage was, and where a weight was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

Placeholder = Callable[[str, tuple[Any, ...], dict[str, Any]], Any]
"""From a module's path and the arguments of its call to what stands for its output."""

# Where torch keeps a module's forward hooks (2.11 to 2.13).
_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


class Absent(nn.Module):
    """Stands where a module outside the stage was: no weights, placeholders as outputs.

    Plain attributes and the class are still those of the module (models look at them between
    blocks: `if isinstance(layer, ...)`), and its hooks still run (some models collect features so).
    """

    def __init__(self, placeholder: Placeholder, path: str, original: nn.Module) -> None:
        super().__init__()
        object.__setattr__(self, "_placeholder", placeholder)
        object.__setattr__(self, "_path", path)
        object.__setattr__(self, "_original", original)
        for name in _HOOKS:
            object.__setattr__(self, name, getattr(original, name))

    @property  # type: ignore[misc] # what isinstance asks; never assigned
    def __class__(self) -> Any:
        return type(object.__getattribute__(self, "_original"))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(object.__getattribute__(self, "_original"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._placeholder(self._path, args, kwargs)


def leave_out(weight: nn.Parameter, model: nn.Module, device: torch.device) -> None:
    """Put in a weight's place, wherever modules hold it, one of its shape that needs no memory: in
    this stage no code reads its values. It is not among the model's parameters any more."""
    stands = _without_memory(weight, device)
    for module in model.modules():
        for key in [key for key, p in module._parameters.items() if p is weight]:
            del module._parameters[key]
            object.__setattr__(module, key, stands)


def first_weights(model: nn.Module) -> dict[nn.Module, nn.Parameter]:
    """Of each module that holds any, itself or in others: the first of real numbers, else the
    first."""
    found = {}
    for module in model.modules():
        own = list(module.parameters())
        if own:
            found[module] = next((p for p in own if p.is_floating_point()), own[0])
    return found


def answer_for_weights(
    model: nn.Module, firsts: Mapping[nn.Module, nn.Parameter], device: torch.device
) -> None:
    """A module all of whose weights are other stages', but whose own code runs in this one, gives
    one of no memory where that code asks `parameters()` for a type or a device (`dtype` and
    `device` of transformers: a stage of XLNet's head alone failed).

    firsts  `first_weights` of the model before its modules were replaced
    """
    for module in model.modules():
        weight = firsts.get(module)
        if weight is None or next(module.parameters(), None) is not None:
            continue
        stands = _without_memory(weight, device)
        object.__setattr__(module, "parameters", lambda recurse=True, only=stands: iter((only,)))


def _without_memory(weight: nn.Parameter, device: torch.device) -> nn.Parameter:
    empty = torch.zeros((), dtype=weight.dtype, device=device).expand(weight.shape)
    return nn.Parameter(empty, requires_grad=weight.requires_grad)
