"""Fused attention as accelerators run it, for tracing without one.

On a CPU torch lowers grouped-query attention to plain products that materialise the scores; an
accelerator runs one fused kernel that keeps q, k, v, the output and one number per row. Tracing
for an accelerator therefore replaces `scaled_dot_product_attention` by an op of our own with the
shapes and the saved tensors of FlashAttention-2 (arXiv 2307.08691, algorithm 1 and 2).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


@torch.library.custom_op("shardwright::flash_attention", mutates_args=())
def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool
) -> tuple[Tensor, Tensor]:
    """Shapes only: [batch, heads, q_len, v_dim] and the log-sum-exp [batch, heads, q_len]."""
    raise NotImplementedError("this op exists for tracing under fake tensors only")


@flash_attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool
) -> tuple[Tensor, Tensor]:
    batch, heads, length, _ = q.shape
    out = q.new_empty(batch, length, heads, v.shape[3]).transpose(1, 2)
    return out, q.new_empty(batch, heads, length, dtype=torch.float32)


@torch.library.custom_op("shardwright::flash_attention_backward", mutates_args=())
def flash_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes only: the gradients of q, k and v."""
    raise NotImplementedError("this op exists for tracing under fake tensors only")


@flash_attention_backward.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


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


flash_attention.register_autograd(_backward, setup_context=_save)


def with_fused_attention(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call gives, attention on four-dimensional tensors as one fused op."""
    if func is torch.nn.functional.scaled_dot_product_attention:
        q, k, v = args[:3] if len(args) > 2 else (kwargs["query"], kwargs["key"], kwargs["value"])
        mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
        causal = args[5] if len(args) > 5 else kwargs.get("is_causal", False)
        if q.dim() == 4:
            return flash_attention(q, k, v, mask, bool(causal))[0]
    return func(*args, **kwargs)


class FusedAttention(TorchFunctionMode):
    """Inside it, scaled_dot_product_attention is one fused op on four-dimensional tensors."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return with_fused_attention(func, args, kwargs or {})
