"""CUDA's versions of functions that torch would run on shapes as on a CPU.

`AutocastShapes` casts inputs like `torch.autocast`. torch's autocast depends on the device of the
tensors, and meta tensors have none. So a function mode casts before the functions run. The lists
are from the autocast op reference (https://docs.pytorch.org/docs/stable/amp.html, "CUDA Ops that
can autocast to float16", "... to float32", "... that promote to the widest input type"). As in
torch, casts of weights are cached.

`DeviceKernels` makes dropout one kernel, which writes the output and a mask of one byte per
element. It decomposes attention without a fused kernel into product, scale, mask, softmax, dropout
and product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

_LOW = (
    "__matmul__ __rmatmul__ addbmm addmm addmv addr baddbmm bmm chain_matmul multi_dot conv1d "
    "conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear matmul mm mv prelu "
    "einsum lstm gru rnn_tanh rnn_relu"
)
_HIGH = (
    "__pow__ __rpow__ acos asin cosh cosine_embedding_loss cdist cosine_similarity cross_entropy "
    "cumprod cumsum dist erfinv exp expm1 group_norm hinge_embedding_loss huber_loss kl_div "
    "l1_loss layer_norm log log10 log_softmax log1p log2 logsumexp margin_ranking_loss mse_loss "
    "multilabel_margin_loss multi_margin_loss nll_loss norm vector_norm pdist poisson_nll_loss pow "
    "prod reciprocal rsqrt sinh smooth_l1_loss soft_margin_loss softmax softmin softplus tan "
    "triplet_margin_loss binary_cross_entropy_with_logits renorm interpolate upsample"
)
_WIDEST = (
    "addcdiv addcmul atan2 bilinear cross dot grid_sample index_put scatter_add tensordot cat "
    "stack concat hstack vstack"
)
_HOMES: tuple[Any, ...] = (torch, Tensor, F, torch._C._nn, torch.linalg)


def _functions(names: str) -> frozenset[Callable[..., Any]]:
    found = (getattr(home, name, None) for name in names.split() for home in _HOMES)
    return frozenset(function for function in found if function is not None)


_LOW_FUNCTIONS, _HIGH_FUNCTIONS, _WIDEST_FUNCTIONS = map(_functions, (_LOW, _HIGH, _WIDEST))


class AutocastShapes(TorchFunctionMode):
    """Within the context, functions cast as under `torch.autocast("cuda", dtype)`."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self._weights: dict[int, tuple[Tensor, Tensor]] = {}

    def forget_weights(self) -> None:
        """Discards the cached casts of weights, like leaving autocast."""
        self._weights.clear()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _LOW_FUNCTIONS:
            return func(*map(self._low, args), **{k: self._low(x) for k, x in kwargs.items()})
        high = func in _HIGH_FUNCTIONS
        if not high and func in _WIDEST_FUNCTIONS:
            tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
            high = any(x.dtype is torch.float32 for x in tensors)
        if high:
            return func(*map(self._high, args), **{k: self._high(x) for k, x in kwargs.items()})
        return func(*args, **kwargs)

    def _low(self, x: Any) -> Any:
        if isinstance(x, (tuple, list)):
            return type(x)(map(self._low, x))
        if not isinstance(x, Tensor) or x.dtype is not torch.float32:
            return x
        if not (x.is_leaf and x.requires_grad):
            return x.to(self.dtype)
        if id(x) not in self._weights:
            self._weights[id(x)] = (x, x.to(self.dtype))  # x too, to keep its id unique
        return self._weights[id(x)][1]

    def _high(self, x: Any) -> Any:
        if isinstance(x, (tuple, list)):
            return type(x)(map(self._high, x))
        return x.float() if isinstance(x, Tensor) and x.dtype is self.dtype else x


class DeviceKernels(TorchFunctionMode):
    """Within the context, dropout is one kernel; `write_attention_out` decomposes attention."""

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
    """Attention with its scores in memory; arguments as of F.scaled_dot_product_attention."""
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
