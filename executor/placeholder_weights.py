"""Weights of other stages: tensors of their shapes that need no memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn


def leave_out(
    modules: Iterable[nn.Module], device: torch.device, only: nn.Parameter | None = None
) -> None:
    """Put tensors that need no memory in the place of the weights of these modules, or of one that
    they hold: in this stage no code reads the values. They are not among the model's parameters any
    more, nor are the modules' buffers among its buffers. All other attributes stay, and so does the
    class: models look at them between blocks."""
    for module in modules:
        for key, p in list(module._parameters.items()):
            if p is not None and (only is None or only is p):
                del module._parameters[key]
                object.__setattr__(module, key, _without_memory(p, device))
        for key, buffer in list(module._buffers.items()) if only is None else ():
            del module._buffers[key]
            object.__setattr__(module, key, buffer)


def first_weights(model: nn.Module) -> dict[nn.Module, nn.Parameter]:
    """Of each module that holds any, itself or in others: the first of real numbers, else the
    first."""
    found = {}
    for module in model.modules():
        own = list(module.parameters())
        if own:
            found[module] = next((p for p in own if p.is_floating_point()), own[0])
    return found


def answer_for_weights(firsts: Mapping[nn.Module, nn.Parameter], device: torch.device) -> None:
    """A module all of whose weights are other stages', but whose own code runs in this one, gives
    one of no memory where that code asks `parameters()` for a type or a device (`dtype` and
    `device` of transformers: a stage of XLNet's head alone failed).

    firsts  `first_weights` of the model before any were left out
    """
    for module, weight in firsts.items():
        if next(module.named_parameters(), None) is None:
            only = _without_memory(weight, device)
            object.__setattr__(module, "parameters", lambda recurse=True, only=only: iter((only,)))


def _without_memory(weight: nn.Parameter, device: torch.device) -> nn.Parameter:
    empty = torch.zeros((), dtype=weight.dtype, device=device).expand(weight.shape)
    return nn.Parameter(empty, requires_grad=weight.requires_grad)
