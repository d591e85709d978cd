"""Recurrences as a CPU runs them, for tracing on shapes.

On shapes torch writes an LSTM out: a dozen small ops a position. On a CPU oneDNN runs a layer
as one op (`aten::mkldnn_rnn_layer`, torch/aten/src/ATen/native/RNN.cpp: `use_mkldnn`, for float32
and bfloat16 without projections), forward and backward. A GRU and a plain RNN are written out there
too. Each layer and direction is one op here, with the work of its two products at every position.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_TYPES = (torch.float32, torch.bfloat16)


Bias = Tensor | None


@torch.library.custom_op("shardwright::lstm_layer", mutates_args=())
def lstm_layer(
    x: Tensor, h: Tensor, c: Tensor, w_in: Tensor, w_state: Tensor, b_in: Bias, b_state: Bias
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Shapes only: x [length, batch, inputs] -> outputs [length, batch, size], the last h and c,
    and the gates that the backward reads."""
    raise NotImplementedError("this op exists for tracing under fake tensors only")


@lstm_layer.register_fake
def _(
    x: Tensor, h: Tensor, c: Tensor, w_in: Tensor, w_state: Tensor, b_in: Bias, b_state: Bias
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    length, batch, _ = x.shape
    size = w_state.shape[1]
    gates = x.new_empty(length, batch, 4 * size)
    return x.new_empty(length, batch, size), torch.empty_like(h), torch.empty_like(c), gates


@torch.library.custom_op("shardwright::lstm_layer_backward", mutates_args=())
def lstm_layer_backward(
    grad: Tensor, x: Tensor, h: Tensor, c: Tensor, w_in: Tensor, w_state: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Shapes only: the gradients of x, h, c, both weights and either bias."""
    raise NotImplementedError("this op exists for tracing under fake tensors only")


@lstm_layer_backward.register_fake
def _(
    grad: Tensor, x: Tensor, h: Tensor, c: Tensor, w_in: Tensor, w_state: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    made = [torch.empty_like(t) for t in (x, h, c, w_in, w_state)]
    return made[0], made[1], made[2], made[3], made[4], x.new_empty(w_in.shape[0])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:5], output[3])
    ctx.biases = inputs[5] is not None


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    *found, bias = lstm_layer_backward(grad, *ctx.saved_tensors)
    # Both biases are added at the same place: their gradients are equal.
    return (*found, bias, bias.clone()) if ctx.biases else (*found, None, None)


lstm_layer.register_autograd(_backward, setup_context=_save)


class FusedRecurrence(TorchFunctionMode):
    """Inside it every layer and direction of an LSTM is one op."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.lstm and not kwargs and _is_fused(args):
            return _lstm(*args)
        return func(*args, **(kwargs or {}))


def _is_fused(args: tuple[Any, ...]) -> bool:
    """Padded (not packed) sequences of a type that oneDNN has, without projections."""
    if len(args) != 9 or not isinstance(args[1], (tuple, list)):
        return False
    x, _, weights, biases, layers, _, _, both, _ = args
    each = 4 if biases else 2
    return x.dtype in _TYPES and len(weights) == each * layers * (2 if both else 1)


def _lstm(
    x: Tensor,
    hx: tuple[Tensor, Tensor],
    weights: list[Tensor],
    biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    both: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """torch.lstm, layer by layer, without dropout, which is off in training here (build.py)."""
    each, directions = (4 if biases else 2), (2 if both else 1)
    y = x.transpose(0, 1) if batch_first else x
    last_h, last_c = [], []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            own = weights[index * each : (index + 1) * each]
            b_in, b_state = own[2:] if biases else (None, None)
            made = lstm_layer(y, hx[0][index], hx[1][index], own[0], own[1], b_in, b_state)
            outputs.append(made[0])
            last_h.append(made[1])
            last_c.append(made[2])
        y = torch.cat(outputs, dim=2) if both else outputs[0]
    out = y.transpose(0, 1) if batch_first else y
    return out, torch.stack(last_h), torch.stack(last_c)
