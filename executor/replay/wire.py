"""Data types of tensors sent between stages, and of stored weights.

Torch's pipelines expect a gradient of every tensor that a stage sends. Integers, booleans and
complex numbers are therefore sent as floating-point tensors of the same values or bits, and a
tensor without a gradient in the model gets zeros here, which end at the stage that sent it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# Sent bit by bit, as a tensor of the same width that is never used for computation.
_SAME_BITS = {torch.int64: torch.float64, torch.int32: torch.float32, torch.int16: torch.float16}
# Sent by value: fp16 represents every integer up to 2048.
_SAME_VALUE = {torch.bool: torch.float16, torch.uint8: torch.float16, torch.int8: torch.float16}


def wire_form(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and type in which a tensor of this shape and type is sent."""
    if dtype.is_complex:
        return (*shape, 2), dtype.to_real()
    return shape, _SAME_BITS.get(dtype) or _SAME_VALUE.get(dtype) or dtype


def sent(x: Tensor) -> Tensor:
    """The tensor as sent; gradients pass through if `x` can have any."""
    if x.is_complex():
        return torch.view_as_real(x.resolve_conj())
    if x.dtype in _SAME_BITS:
        return x.contiguous().view(_SAME_BITS[x.dtype])
    return x.to(_SAME_VALUE[x.dtype]) if x.dtype in _SAME_VALUE else x


def taken(wire: Tensor, dtype: torch.dtype, *, requires_grad: bool) -> Tensor:
    """The received tensor in the type that the model uses. It is detached unless the model computes
    its gradient: attention chooses another kernel for a mask that requires one."""
    found = wire if requires_grad else wire.detach()
    if dtype.is_complex:
        # A view of a leaf must not be written in place, but the model may do so.
        return torch.view_as_complex(found.clone())
    if dtype in _SAME_BITS:
        return found.contiguous().view(dtype)
    return found.to(dtype) if dtype in _SAME_VALUE else found


def answering(outputs: Sequence[Tensor], quiet: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """A stage's outputs, changed so that its backward gives zeros to inputs without a gradient.

    quiet  received tensors without a gradient. The outputs of a stage are leaves if it trains
           nothing and received nothing with a gradient
    """
    made = list(outputs)
    at = next((i for i, x in enumerate(made) if x.requires_grad), 0)
    if quiet:
        made[at] = _Answering.apply(made[at], *quiet)  # type: ignore[no-untyped-call] # torch's
    elif not made[at].requires_grad:
        made[at] = made[at].detach().requires_grad_()
    return tuple(made)


class _Answering(torch.autograd.Function):
    """Returns a tensor unchanged; its backward gives zeros to the others."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, *quiet: Tensor) -> Tensor:
        ctx.forms = [(x.shape, x.dtype, x.device) for x in quiet]
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        zeros = (torch.zeros(s, dtype=t, device=d) for s, t, d in ctx.forms)
        return (gradient if ctx.needs_input_grad[0] else None, *zeros)


def stored_type(parameter: Tensor) -> torch.dtype:
    """The type in which a weight is stored: fp32 for every compute type except fp64."""
    narrow = parameter.is_floating_point() and parameter.dtype != torch.float64
    return torch.float32 if narrow else parameter.dtype
