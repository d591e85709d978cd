"""Weights of other stages, replaced by tensors of the same shape without memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn


def leave_out(
    modules: Iterable[nn.Module], device: torch.device, only: nn.Parameter | None = None
) -> None:
    """Replace the weights of these modules (or one weight) by tensors without memory, because no
    code of this stage reads their values. They are no longer parameters of the model, and the
    modules' buffers are no longer its buffers. All other attributes and the class stay, because
    models read them between blocks."""
    for module in modules:
        for key, p in list(module._parameters.items()):
            if p is not None and (only is None or only is p):
                del module._parameters[key]
                object.__setattr__(module, key, _without_memory(p, device))
        for key, buffer in list(module._buffers.items()) if only is None else ():
            del module._buffers[key]
            object.__setattr__(module, key, buffer)


def first_weights(model: nn.Module) -> dict[nn.Module, nn.Parameter]:
    """The first floating-point parameter of each module, its submodules included; otherwise its
    first parameter."""
    found = {}
    for module in model.modules():
        own = list(module.parameters())
        if own:
            found[module] = next((p for p in own if p.is_floating_point()), own[0])
    return found


def answer_for_weights(firsts: Mapping[nn.Module, nn.Parameter], device: torch.device) -> None:
    """Let modules without weights in this stage return a placeholder from `parameters()`. Their
    code still runs in the stage, and transformers' `dtype` and `device` read it (otherwise the last
    stage of XLNet fails).

    firsts  `first_weights` of the model before any were left out
    """
    for module, weight in firsts.items():
        if next(module.named_parameters(), None) is None:
            only = _without_memory(weight, device)
            object.__setattr__(module, "parameters", lambda recurse=True, only=only: iter((only,)))


def _without_memory(weight: nn.Parameter, device: torch.device) -> nn.Parameter:
    empty = torch.zeros((), dtype=weight.dtype, device=device).expand(weight.shape)
    return nn.Parameter(empty, requires_grad=weight.requires_grad)
