"""Functions as an accelerator runs them, where torch on shapes would run them as a CPU does.

dropout     one kernel that writes the output and a mask of one byte per element
attention   without a fused kernel: product, scale, mask, softmax, dropout, product
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class DeviceKernels(TorchFunctionMode):
    """Inside it dropout is one kernel, and attention is written out where asked for."""

    def __init__(self, *, write_attention_out: bool) -> None:
        super().__init__()
        self.write_attention_out = write_attention_out

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout:
            return _dropout(*args, **kwargs)
        if func is F.scaled_dot_product_attention and self.write_attention_out:
            return plain_attention(*args, **kwargs)
        return func(*args, **kwargs)


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return torch.native_dropout(input, p, True)[0] if training and p > 0 else input


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention with its scores in memory; arguments of F.scaled_dot_product_attention."""
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(repeats, -3) for x in (key, value))
    scores = torch.matmul(query, key.transpose(-2, -1))
    scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = scores.masked_fill(attn_mask.logical_not(), float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    elif is_causal:
        scores = scores + scores.new_empty(scores.shape[-2:])
    shares = torch.softmax(scores, -1)
    if dropout_p > 0:
        shares = torch.native_dropout(shares, dropout_p, True)[0]
    return torch.matmul(shares, value)
