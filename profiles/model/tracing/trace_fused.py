"""Fused attention, RMS norms and recurrent layers, traced as one op each.

Attention: on a CPU torch decomposes grouped-query attention into products that materialize the
scores; an accelerator runs one fused kernel that saves q, k, v, the output and one number per row.
A trace for an accelerator therefore replaces `scaled_dot_product_attention` by a custom op with the
shapes and saved tensors of FlashAttention-2 (arXiv 2307.08691, algorithms 1 and 2).

RMS norms: torch has one kernel for `torch.nn.functional.rms_norm` on accelerators, which saves its
input and one number per row; on a CPU the same call is eight ops, in fp32
(`_fused_rms_norm` in torch/aten/src/ATen/native/native_functions.yaml and layer_norm.cpp).

Recurrences: on shapes torch decomposes an LSTM into a dozen small ops per position. On a CPU oneDNN
runs a layer as one op (`aten::mkldnn_rnn_layer`, torch/aten/src/ATen/native/RNN.cpp: `use_mkldnn`,
for float32 and bfloat16 without projections). A GRU or plain RNN is a C++ loop on weights that stay
in the caches: priced op by op, a GRU took 1.9 times its measured time (2-core virtual machine,
torch 2.13, 2026-11-22). On an accelerator, cuDNN runs a layer in one call. So a layer is one op,
with its two products at every position, and a CPU's profile measures layers (probe/probe_ops.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


def fake_op(name: str, schema: str, shapes: Callable[..., Any]) -> Any:
    """A custom op for fake tensors only; `shapes` creates its outputs."""
    torch.library.define(f"shardwright::{name}", schema)
    torch.library.register_fake(f"shardwright::{name}", shapes)
    return getattr(torch.ops.shardwright, name)


def _attended(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool
) -> tuple[Tensor, Tensor]:
    """[batch, heads, q_len, v_dim] and the log-sum-exp [batch, heads, q_len]."""
    batch, heads, length, _ = q.shape
    out = q.new_empty(batch, length, heads, v.shape[3]).transpose(1, 2)
    return out, q.new_empty(batch, heads, length, dtype=torch.float32)


flash_attention = fake_op(
    "flash_attention",
    "(Tensor q, Tensor k, Tensor v, Tensor? mask, bool is_causal) -> (Tensor, Tensor)",
    _attended,
)
flash_attention_backward = fake_op(
    "flash_attention_backward",
    "(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, bool is_causal) "
    "-> (Tensor, Tensor, Tensor)",
    lambda grad, q, k, v, out, lse, is_causal: tuple(map(torch.empty_like, (q, k, v))),
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, mask, is_causal = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.is_causal = is_causal
    ctx.mask_shape = mask.shape if mask is not None and mask.requires_grad else None
    ctx.mask_dtype = mask.dtype if mask is not None else None


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, out, lse = ctx.saved_tensors
    dq, dk, dv = flash_attention_backward(grad, q, k, v, out, lse, ctx.is_causal)
    mask = None
    if ctx.mask_shape is not None:
        mask = q.new_empty(ctx.mask_shape, dtype=ctx.mask_dtype)
    return dq, dk, dv, mask, None


torch.library.register_autograd("shardwright::flash_attention", _backward, setup_context=_save)


# Bound here, because a caller may replace the function of that name.
_ATTENTION = torch.nn.functional.scaled_dot_product_attention


def with_fused_attention(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make a call; attention on four-dimensional tensors is one fused op."""
    if func is _ATTENTION:
        q, k, v = args[:3] if len(args) > 2 else (kwargs["query"], kwargs["key"], kwargs["value"])
        mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
        causal = args[5] if len(args) > 5 else kwargs.get("is_causal", False)
        if q.dim() == 4:
            return flash_attention(q, k, v, mask, bool(causal))[0]
    return func(*args, **kwargs)


class FusedAttention(TorchFunctionMode):
    """Within the context, scaled_dot_product_attention on 4-D tensors is one fused op."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return with_fused_attention(func, args, kwargs or {})


def _normed(x: Tensor, weight: Tensor | None, dims: int) -> tuple[Tensor, Tensor]:
    """The shape of x, and one number per row."""
    rows = x.new_empty(x.shape[: x.dim() - dims], dtype=torch.float32)
    return x.new_empty(x.shape), rows


rms_norm = fake_op("rms_norm", "(Tensor x, Tensor? weight, int dims) -> (Tensor, Tensor)", _normed)
rms_norm_backward = fake_op(
    "rms_norm_backward",
    "(Tensor grad, Tensor x, Tensor rows, Tensor? weight) -> (Tensor, Tensor)",
    lambda grad, x, rows, weight: (
        x.new_empty(x.shape),
        x.new_empty(0 if weight is None else weight.shape),
    ),
)


def _save_rows(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, output[1], weight)


def _norm_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    x, rows, weight = ctx.saved_tensors
    dx, dw = rms_norm_backward(grad, x, rows, weight)
    return dx, None if weight is None else dw, None


torch.library.register_autograd("shardwright::rms_norm", _norm_backward, setup_context=_save_rows)


class FusedNorms(TorchFunctionMode):
    """Within the context, an RMS norm is one op, except with a weight of another data type, for
    which torch has no kernel."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func not in (torch.nn.functional.rms_norm, torch.rms_norm):
            return func(*args, **(kwargs or {}))
        given = dict(zip(("input", "normalized_shape", "weight"), args, strict=False))
        given |= kwargs or {}
        x, weight = given["input"], given.get("weight")
        if weight is not None and weight.dtype is not x.dtype:
            return func(*args, **(kwargs or {}))
        return rms_norm(x, weight, len(given["normalized_shape"]))[0]


ONEDNN_TYPES = (torch.float32, torch.bfloat16)
CUDNN_TYPES = (*ONEDNN_TYPES, torch.float16)

Bias = Tensor | None


def _layer(kind: str, saved: int) -> Any:
    """The op `shardwright::{kind}_layer`, registered with its backward.

    x [length, batch, inputs] -> outputs [length, batch, size], the last h and c (unused by kinds
    other than an LSTM), and the tensor saved for the backward.

    saved  elements saved for the backward per position, sample and feature, without the operands:
           an LSTM's gates as in oneDNN; of the others, those of a decomposed trace
           (tests/profiles/test_trace_recurrence.py)
    """

    def forward_shapes(
        x: Tensor, h: Tensor, c: Tensor, w_in: Tensor, w_state: Tensor, b_in: Bias, b_state: Bias
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        length, batch, _ = x.shape
        size = w_state.shape[1]
        kept = x.new_empty(length, batch, saved * size)
        return x.new_empty(length, batch, size), torch.empty_like(h), torch.empty_like(c), kept

    def backward_shapes(
        grad: Tensor, x: Tensor, h: Tensor, c: Tensor, w_in: Tensor, w_state: Tensor, kept: Tensor
    ) -> tuple[Tensor, ...]:
        made = map(torch.empty_like, (x, h, c, w_in, w_state))
        return (*made, x.new_empty(w_in.shape[0]))

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:5], output[3])
        ctx.biases = inputs[5] is not None

    def gradients(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        *found, bias = backward(grad, *ctx.saved_tensors)
        # Both biases are added at the same place: their gradients are equal.
        return (*found, bias, bias.clone()) if ctx.biases else (*found, None, None)

    operands = "Tensor x, Tensor h, Tensor c, Tensor w_in, Tensor w_state"
    backward = fake_op(
        f"{kind}_layer_backward",
        f"(Tensor grad, {operands}, Tensor kept) -> ({', '.join(['Tensor'] * 6)})",
        backward_shapes,
    )
    forward = fake_op(
        f"{kind}_layer",
        f"({operands}, Tensor? b_in, Tensor? b_state) -> ({', '.join(['Tensor'] * 4)})",
        forward_shapes,
    )
    torch.library.register_autograd(f"shardwright::{kind}_layer", gradients, setup_context=save)
    return forward


_LSTM, _GRU, _RNN = _layer("lstm", 4), _layer("gru", 7), _layer("rnn", 1)
_OPS = {torch.lstm: _LSTM, torch.gru: _GRU, torch.rnn_tanh: _RNN, torch.rnn_relu: _RNN}


class FusedRecurrence(TorchFunctionMode):
    """Within the context, each layer and direction of an LSTM, GRU or RNN with one of the data
    types `types` is one op."""

    def __init__(self, types: tuple[torch.dtype, ...] = ONEDNN_TYPES) -> None:
        super().__init__()
        self.types = types

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        op = _OPS.get(func)
        if op is not None and not kwargs and _is_fused(args, self.types):
            return _layers(op, *args)
        return func(*args, **(kwargs or {}))


def _is_fused(args: tuple[Any, ...], types: tuple[torch.dtype, ...]) -> bool:
    """Whether the sequences are padded (not packed), of a supported type and without
    projections."""
    if len(args) != 9 or not isinstance(args[2], (tuple, list)):
        return False
    x, _, weights, biases, layers, _, _, both, _ = args
    each = 4 if biases else 2
    return x.dtype in types and len(weights) == each * layers * (2 if both else 1)


def _layers(
    op: Callable[..., Any],
    x: Tensor,
    hx: Any,
    weights: list[Tensor],
    biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    both: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """torch.lstm, gru or rnn layer by layer; dropout is always off (build.py)."""
    each, directions = (4 if biases else 2), (2 if both else 1)
    with_cell = isinstance(hx, (tuple, list))
    first_h, first_c = hx if with_cell else (hx, hx)
    y = x.transpose(0, 1) if batch_first else x
    last_h, last_c = [], []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            own = weights[index * each : (index + 1) * each]
            b_in, b_state = own[2:] if biases else (None, None)
            made = op(y, first_h[index], first_c[index], own[0], own[1], b_in, b_state)
            outputs.append(made[0])
            last_h.append(made[1])
            last_c.append(made[2])
        y = torch.cat(outputs, dim=2) if both else outputs[0]
    out = y.transpose(0, 1) if batch_first else y
    if not with_cell:
        return out, torch.stack(last_h)
    return out, torch.stack(last_h), torch.stack(last_c)
