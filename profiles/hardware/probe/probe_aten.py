"""Memory-bound aten ops by name, forward and backward: what a family's curve averages away.

On a CPU a normalisation, a pooling or a scatter takes up to twenty times as long as an addition of
the same bytes. Every op here is the one that torch's autograd runs in a training step, called with
tensors shaped as training shapes them: rows of 512, images of 32 channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from profiles.errors import InputError
from profiles.hardware.catalogue.device import ACROSS
from profiles.model.tracing.trace_ops import moved_bytes_of

aten = torch.ops.aten
Call = tuple[Any, tuple[Any, ...]]

_ROW, _CHANNELS = 512, 32
_SIDES = (32, 16, 8, 4)


class Tensors:
    """Tensors of about `count` elements for one op; on the meta device they have shapes alone."""

    def __init__(self, count: int, dtype: torch.dtype, device: torch.device) -> None:
        self.count, self.dtype, self.device = max(1, count), dtype, device

    def flat(self) -> Tensor:
        """[count]"""
        return self._made((self.count,))

    def rows(self) -> Tensor:
        """[rows, 512], or one shorter row."""
        return self._made((max(1, self.count // _ROW), min(_ROW, self.count)))

    def images(self, divided: int = 1) -> Tensor:
        """[batch, 32, side, side] of count / divided elements."""
        count = max(1, self.count // divided)
        side = next((s for s in _SIDES if 2 * _CHANNELS * s * s <= count), _SIDES[-1])
        batch = max(1, count // (_CHANNELS * side * side))
        return self._made((batch, _CHANNELS, side, side))

    def index(self, size: int, below: int) -> Tensor:
        """[size] of integers below a bound, in no order."""
        if self.device.type == "meta":
            return torch.empty(size, dtype=torch.int64, device="meta")
        return torch.randint(0, max(1, below), (size,), device=self.device)

    def _made(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, device=self.device).to(self.dtype)


def aten_names() -> tuple[str, ...]:
    """Every op that can be measured by name, and along another dimension (ACROSS)."""
    return tuple(sorted(_OPS))


def aten_call(name: str, count: int, dtype: torch.dtype, device: torch.device) -> Call:
    """The op and its arguments on tensors of about `count` elements.

    Raises InputError for a name that is not in `aten_names`.
    """
    if name not in _OPS:
        raise InputError(f"aten op {name!r} has no case; there are {', '.join(aten_names())}")
    return _OPS[name](Tensors(count, dtype, device))


def aten_bytes(name: str, count: int, dtype: str) -> int:
    """Bytes that the op reads and writes as tracing counts them (trace_ops.describe_op)."""
    func, args = aten_call(name, count, getattr(torch, dtype), torch.device("meta"))
    return moved_bytes_of(func, args, {}, func(*args))


def _one(func: Any, *more: Any) -> Callable[[Tensors], Call]:
    """An op of one flat tensor."""
    return lambda make: (func, (make.flat(), *more))


def _positive(func: Any) -> Callable[[Tensors], Call]:
    """An op of one flat tensor that is defined above 0."""
    return lambda make: (func, (make.flat().abs_().add_(1e-3),))


def _two(func: Any, *more: Any) -> Callable[[Tensors], Call]:
    """An op of two flat tensors; in a backward the gradient comes first."""
    return lambda make: (func, (make.flat(), make.flat(), *more))


def _layer_norm(make: Tensors) -> Call:
    x = make.rows()
    size = x.shape[-1:]
    weight = x.new_ones(size)
    return aten.native_layer_norm.default, (x, list(size), weight, x.new_zeros(size), 1e-5)


def _layer_norm_backward(make: Tensors) -> Call:
    func, (x, size, weight, bias, eps) = _layer_norm(make)
    _, mean, rstd = func(x, size, weight, bias, eps)
    args = (torch.ones_like(x), x, size, mean, rstd, weight, bias, [True] * 3)
    return aten.native_layer_norm_backward.default, args


def _batch_norm(make: Tensors) -> Call:
    x = make.images()
    of = [x.new_ones(_CHANNELS, dtype=torch.float32) for _ in range(4)]
    return aten.native_batch_norm.default, (x, *of, True, 0.1, 1e-5)


def _batch_norm_backward(make: Tensors) -> Call:
    func, args = _batch_norm(make)
    x, weight, _, mean, var = args[:5]
    _, saved, inverse = func(*args)
    more = (torch.ones_like(x), x, weight, mean, var, saved, inverse, True, 1e-5, [True] * 3)
    return aten.native_batch_norm_backward.default, more


def _group_norm(make: Tensors) -> Call:
    x = make.images()
    batch, channels = x.shape[:2]
    sizes = (batch, channels, x.shape[2] * x.shape[3], 8)
    ones, zeros = x.new_ones(channels), x.new_zeros(channels)
    return aten.native_group_norm.default, (x, ones, zeros, *sizes, 1e-5)


def _group_norm_backward(make: Tensors) -> Call:
    func, args = _group_norm(make)
    _, mean, rstd = func(*args)
    x, weight, sizes = args[0], args[1], args[3:7]
    more = (torch.ones_like(x), x, mean, rstd, weight, *sizes, [True] * 3)
    return aten.native_group_norm_backward.default, more


def _softmax(func: Any, across: bool) -> Callable[[Tensors], Call]:
    return lambda make: (func, (_turned(make), 1, False) if across else (make.rows(), -1, False))


def _softmax_backward(func: Any, forward: Any, across: bool) -> Callable[[Tensors], Call]:
    def made(make: Tensors) -> Call:
        _, args = _softmax(forward, across)(make)
        out = forward(*args)
        return func, (torch.ones(out.shape).to(out), out, args[1], make.dtype)

    return made


def _turned(make: Tensors) -> Tensor:
    """[batch, 512, rows] as a head makes it and `transpose(1, 2)` turns it for a loss."""
    x = make.rows()
    batch = 4 if x.shape[0] % 4 == 0 else 1
    return x.view(batch, -1, x.shape[1]).transpose(1, 2)


def _sum(make: Tensors) -> Call:
    return aten.sum.dim_IntList, (make.rows(), [0], True)


def _mean(make: Tensors) -> Call:
    return aten.mean.dim, (make.images(), [2, 3])


def _max_pool(make: Tensors) -> Call:
    return aten.max_pool2d_with_indices.default, (make.images(), [2, 2], [2, 2])


def _max_pool_backward(make: Tensors) -> Call:
    func, args = _max_pool(make)
    out, index = func(*args)
    more = (out, args[0], [2, 2], [2, 2], [0, 0], [1, 1], False, index)
    return aten.max_pool2d_with_indices_backward.default, more


def _max_pool_volumes(make: Tensors) -> Call:
    x = make.images()
    x = x.view(x.shape[0], x.shape[1], x.shape[2] // 2, 2, x.shape[3])
    return aten.max_pool3d_with_indices.default, (x, [2, 2, 2], [2, 2, 2])


def _max_pool_volumes_backward(make: Tensors) -> Call:
    func, args = _max_pool_volumes(make)
    out, index = func(*args)
    more = (out, args[0], [2] * 3, [2] * 3, [0] * 3, [1] * 3, False, index)
    return aten.max_pool3d_with_indices_backward.default, more


def _avg_pool(make: Tensors) -> Call:
    return aten.avg_pool2d.default, (make.images(), [2, 2], [2, 2])


def _avg_pool_backward(make: Tensors) -> Call:
    x = make.images()
    gradient = x[:, :, ::2, ::2].contiguous()
    more = ([2, 2], [2, 2], [0, 0], False, True, None)
    return aten.avg_pool2d_backward.default, (gradient, x, *more)


def _resize(func: Any, *more: Any) -> Callable[[Tensors], Call]:
    def made(make: Tensors) -> Call:
        x = make.images(4)
        return func, (x, [2 * x.shape[2], 2 * x.shape[3]], *more)

    return made


def _resize_backward(func: Any, *more: Any) -> Callable[[Tensors], Call]:
    def made(make: Tensors) -> Call:
        gradient = make.images()
        batch, channels, high, wide = gradient.shape
        sizes = ([high, wide], [batch, channels, high // 2, wide // 2])
        return func, (gradient, *sizes, *more)

    return made


def _embedding(make: Tensors) -> Call:
    x = make.rows()
    return aten.embedding.default, (x, make.index(x.shape[0], x.shape[0]))


def _embedding_backward(make: Tensors) -> Call:
    x = make.rows()
    index = make.index(x.shape[0], x.shape[0])
    return aten.embedding_dense_backward.default, (x, index, x.shape[0], -1, False)


def _index_select(make: Tensors) -> Call:
    x = make.rows()
    return aten.index_select.default, (x, 0, make.index(x.shape[0], x.shape[0]))


def _index(make: Tensors) -> Call:
    x = make.rows()
    return aten.index.Tensor, (x, [make.index(x.shape[0], x.shape[0])])


def _index_put(make: Tensors) -> Call:
    x = make.rows()
    index = make.index(x.shape[0], x.shape[0])
    return aten.index_put.default, (x, [index], torch.ones_like(x), True)


def _index_add(make: Tensors) -> Call:
    x = make.rows()
    index = make.index(x.shape[0], x.shape[0])
    return aten.index_add.default, (x, 0, index, torch.ones_like(x))


def _gather(make: Tensors) -> Call:
    x = make.rows()
    index = make.index(x.numel(), x.shape[1]).view(x.shape)
    return aten.gather.default, (x, 1, index)


def _scatter_add(make: Tensors) -> Call:
    x = make.rows()
    index = make.index(x.numel(), x.shape[1]).view(x.shape)
    return aten.scatter_add.default, (x, 1, index, torch.ones_like(x))


def _cat(make: Tensors) -> Call:
    x = make.images(2)
    return aten.cat.default, ([x, torch.ones_like(x)], 1)


def _stack(make: Tensors) -> Call:
    x = make.rows()
    half = x[: max(1, x.shape[0] // 2)].contiguous()
    return aten.stack.default, ([half, torch.ones_like(half)], 1)


def _clone(make: Tensors) -> Call:
    # What `.contiguous()` and `reshape` run: a copy out of another order in memory.
    x = make.rows().t()
    return aten.clone.default, (x,)


def _copy(make: Tensors) -> Call:
    x = make.rows()
    return aten.copy_.default, (torch.empty_like(x), x)


def _pad(make: Tensors) -> Call:
    return aten.constant_pad_nd.default, (make.images(), [1, 1, 1, 1], 0.0)


def _slice_backward(make: Tensors) -> Call:
    x = make.rows()
    half = x[:, : max(1, x.shape[1] // 2)].contiguous()
    return aten.slice_backward.default, (half, list(x.shape), 1, 0, half.shape[1], 1)


def _masked_fill(make: Tensors) -> Call:
    x = make.flat()
    return aten.masked_fill.Scalar, (x, _mask(x), 0.0)


def _where(make: Tensors) -> Call:
    x = make.flat()
    return aten.where.self, (_mask(x), x, torch.ones_like(x))


def _mask(x: Tensor) -> Tensor:
    return torch.zeros(x.shape, dtype=torch.bool, device=x.device)


def _by_last(func: Any, *more: Any) -> Callable[[Tensors], Call]:
    """An op along rows."""
    return lambda make: (func, (make.rows(), *more))


_OPS: dict[str, Callable[[Tensors], Call]] = {
    "add": _two(aten.add.Tensor),
    "add_": _two(aten.add_.Tensor),
    "sub": _two(aten.sub.Tensor),
    "mul": _two(aten.mul.Tensor),
    "div": _two(aten.div.Tensor),
    "neg": _one(aten.neg.default),
    "pow": _one(aten.pow.Tensor_Scalar, 2),
    "exp": _one(aten.exp.default),
    "sqrt": _positive(aten.sqrt.default),
    "rsqrt": _positive(aten.rsqrt.default),
    "sin": _one(aten.sin.default),
    "abs": _one(aten.abs.default),
    "clamp": _one(aten.clamp.default, -1.0, 1.0),
    "relu": _one(aten.relu.default),
    "threshold_backward": _two(aten.threshold_backward.default, 0),
    "leaky_relu": _one(aten.leaky_relu.default, 0.01),
    "leaky_relu_backward": _two(aten.leaky_relu_backward.default, 0.01, False),
    "elu": _one(aten.elu.default),
    "hardtanh": _one(aten.hardtanh.default, 0.0, 6.0),
    "hardtanh_backward": _two(aten.hardtanh_backward.default, 0.0, 6.0),
    "gelu": _one(aten.gelu.default),
    "gelu_backward": _two(aten.gelu_backward.default),
    "silu": _one(aten.silu.default),
    "silu_backward": _two(aten.silu_backward.default),
    "hardswish": _one(aten.hardswish.default),
    "hardswish_backward": _two(aten.hardswish_backward.default),
    "softplus": _one(aten.softplus.default),
    "softplus_backward": _two(aten.softplus_backward.default, 1.0, 20.0),
    "sigmoid": _one(aten.sigmoid.default),
    "sigmoid_backward": _two(aten.sigmoid_backward.default),
    "tanh": _one(aten.tanh.default),
    "tanh_backward": _two(aten.tanh_backward.default),
    "where": _where,
    "masked_fill": _masked_fill,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    **{
        f"{name}{end}{ACROSS if across else ''}": call
        for name, forward, backward in (
            ("_softmax", aten._softmax, aten._softmax_backward_data),
            ("_log_softmax", aten._log_softmax, aten._log_softmax_backward_data),
        )
        for across in (False, True)
        for end, call in (
            ("", _softmax(forward.default, across)),
            ("_backward_data", _softmax_backward(backward.default, forward.default, across)),
        )
    },
    "sum": _sum,
    "mean": _mean,
    "cumsum": _by_last(aten.cumsum.default, -1),
    "amax": _by_last(aten.amax.default, [-1], True),
    "sort": _by_last(aten.sort.default, -1),
    "topk": _by_last(aten.topk.default, 8, -1),
    "max_pool2d_with_indices": _max_pool,
    "max_pool2d_with_indices_backward": _max_pool_backward,
    "max_pool3d_with_indices": _max_pool_volumes,
    "max_pool3d_with_indices_backward": _max_pool_volumes_backward,
    "avg_pool2d": _avg_pool,
    "avg_pool2d_backward": _avg_pool_backward,
    "upsample_nearest2d": _resize(aten.upsample_nearest2d.default),
    "upsample_nearest2d_backward": _resize_backward(aten.upsample_nearest2d_backward.default),
    "upsample_bilinear2d": _resize(aten.upsample_bilinear2d.default, False),
    "upsample_bilinear2d_backward": _resize_backward(
        aten.upsample_bilinear2d_backward.default, False
    ),
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "index_select": _index_select,
    "index": _index,
    "index_put": _index_put,
    "index_add": _index_add,
    "gather": _gather,
    "scatter_add": _scatter_add,
    "cat": _cat,
    "stack": _stack,
    "clone": _clone,
    "copy_": _copy,
    "constant_pad_nd": _pad,
    "slice_backward": _slice_backward,
}
