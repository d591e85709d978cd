"""Memory-bound aten ops by name, forward and backward, which differ too much for one curve.

On a CPU a normalization, a pooling or a scatter takes up to twenty times as long as an addition of
the same bytes. The ops are the ones of autograd in a training step, on shapes of training: rows
of 512, images of 32 channels.
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
    """Tensors of about `count` elements for one op; on the meta device they have only shapes."""

    def __init__(self, count: int, dtype: torch.dtype, device: torch.device) -> None:
        self.count, self.dtype, self.device = max(1, count), dtype, device

    def flat(self) -> Tensor:
        """[count]"""
        return self._made((self.count,))

    def positive(self) -> Tensor:
        """[count] of numbers above 0"""
        return self.flat().abs_().add_(1e-3)

    def rows(self) -> Tensor:
        """[rows, 512], or one shorter row"""
        return self._made((max(1, self.count // _ROW), min(_ROW, self.count)))

    def columns(self) -> Tensor:
        """[batch, 512, rows]: the output of a head after `transpose(1, 2)`, as a loss takes it"""
        x = self.rows()
        return x.view(4 if x.shape[0] % 4 == 0 else 1, -1, x.shape[1]).transpose(1, 2)

    def half_rows(self, dim: int) -> Tensor:
        """The first half of `rows` along a dimension"""
        x = self.rows()
        return x.narrow(dim, 0, max(1, x.shape[dim] // 2)).contiguous()

    def images(self, divided: int = 1) -> Tensor:
        """[batch, 32, side, side] of count / divided elements"""
        count = max(1, self.count // divided)
        side = next((s for s in _SIDES if 2 * _CHANNELS * s * s <= count), _SIDES[-1])
        return self._made((max(1, count // (_CHANNELS * side * side)), _CHANNELS, side, side))

    def volumes(self) -> Tensor:
        """[batch, 32, side / 2, 2, side]"""
        batch, channels, high, wide = (x := self.images()).shape
        return x.view(batch, channels, high // 2, 2, wide)

    def row_index(self, x: Tensor) -> Tensor:
        """[rows] of row numbers in random order"""
        return self._index(x.shape[0], x.shape[0])

    def places(self, x: Tensor) -> Tensor:
        """[rows, 512] of random places in a row"""
        return self._index(x.numel(), x.shape[1]).view(x.shape)

    def _index(self, size: int, below: int) -> Tensor:
        if self.device.type == "meta":
            return torch.empty(size, dtype=torch.int64, device="meta")
        return torch.randint(0, max(1, below), (size,), device=self.device)

    def _made(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, device=self.device).to(self.dtype)


Maker = Callable[[Tensors], Call]


def aten_names() -> tuple[str, ...]:
    """All ops that are measured by name; see ACROSS for the suffix of some."""
    return tuple(sorted(_OPS))


def aten_call(name: str, count: int, dtype: torch.dtype, device: torch.device) -> Call:
    """The op and its arguments on tensors of about `count` elements.

    Raises InputError for a name outside of `aten_names`.
    """
    if name not in _OPS:
        raise InputError(f"aten op {name!r} has no case; there are {', '.join(aten_names())}")
    return _OPS[name](Tensors(count, dtype, device))


def aten_bytes(name: str, count: int, dtype: str) -> int:
    """Bytes that the op reads and writes, as the tracer counts them (trace_ops.describe_op)."""
    func, args = aten_call(name, count, getattr(torch, dtype), torch.device("meta"))
    return moved_bytes_of(func, args, {}, func(*args))


def _one(func: Any, *more: Any) -> Maker:
    """An op of one flat tensor."""
    return lambda t: (func, (t.flat(), *more))


def _two(func: Any, *more: Any) -> Maker:
    """An op of two flat tensors; in a backward the gradient comes first."""
    return lambda t: (func, (t.flat(), t.flat(), *more))


def _backward(func: Any, forward: Maker, arguments: Callable[[tuple[Any, ...], Any], Any]) -> Maker:
    """The backward of an op; `arguments` maps the forward's arguments and outputs to its own."""

    def made(t: Tensors) -> Call:
        op, args = forward(t)
        return func, arguments(args, op(*args))

    return made


def _layer_norm(t: Tensors) -> Call:
    x = t.rows()
    size = x.shape[-1:]
    weight = x.new_ones(size)
    return aten.native_layer_norm.default, (x, list(size), weight, x.new_zeros(size), 1e-5)


def _batch_norm(t: Tensors) -> Call:
    x = t.images()
    of = [x.new_ones(_CHANNELS, dtype=torch.float32) for _ in range(4)]
    return aten.native_batch_norm.default, (x, *of, True, 0.1, 1e-5)


def _group_norm(t: Tensors) -> Call:
    x = t.images()
    batch, channels, high, wide = x.shape
    ones, zeros = x.new_ones(channels), x.new_zeros(channels)
    return aten.native_group_norm.default, (x, ones, zeros, batch, channels, high * wide, 8, 1e-5)


def _softmax(func: Any, across: bool) -> Maker:
    return lambda t: (func, (t.columns(), 1, False) if across else (t.rows(), -1, False))


def _softmax_backward(func: Any, forward: Any, across: bool) -> Maker:
    return _backward(
        func,
        _softmax(forward, across),
        lambda a, out: (torch.ones(out.shape).to(out), out, a[1], out.dtype),
    )


def _max_pool(t: Tensors) -> Call:
    return aten.max_pool2d_with_indices.default, (t.images(), [2, 2], [2, 2])


def _max_pool_volumes(t: Tensors) -> Call:
    return aten.max_pool3d_with_indices.default, (t.volumes(), [2, 2, 2], [2, 2, 2])


def _max_pool_backward(func: Any, forward: Maker, dims: int) -> Maker:
    shape = ([2] * dims, [2] * dims, [0] * dims, [1] * dims, False)
    return _backward(func, forward, lambda a, out: (out[0], a[0], *shape, out[1]))


def _avg_pool_backward(t: Tensors) -> Call:
    x = t.images()
    more = ([2, 2], [2, 2], [0, 0], False, True, None)
    return aten.avg_pool2d_backward.default, (x[:, :, ::2, ::2].contiguous(), x, *more)


def _resize(func: Any, *more: Any) -> Maker:
    def made(t: Tensors) -> Call:
        x = t.images(4)
        return func, (x, [2 * x.shape[2], 2 * x.shape[3]], *more)

    return made


def _resize_backward(func: Any, *more: Any) -> Maker:
    def made(t: Tensors) -> Call:
        gradient = t.images()
        batch, channels, high, wide = gradient.shape
        sizes = ([high, wide], [batch, channels, high // 2, wide // 2])
        return func, (gradient, *sizes, *more)

    return made


def _slice_backward(t: Tensors) -> Call:
    x, half = t.rows(), t.half_rows(1)
    return aten.slice_backward.default, (half, list(x.shape), 1, 0, half.shape[1], 1)


def _mask(x: Tensor) -> Tensor:
    return torch.zeros(x.shape, dtype=torch.bool, device=x.device)


_PLAIN = ("neg", "exp", "sin", "abs", "relu", "elu", "gelu", "silu", "hardswish", "softplus")
_OPS: dict[str, Maker] = {
    **{name: _two(getattr(aten, name).Tensor) for name in ("add", "add_", "sub", "mul", "div")},
    **{name: _one(getattr(aten, name).default) for name in (*_PLAIN, "sigmoid", "tanh")},
    **{
        f"{name}_backward": _two(getattr(aten, f"{name}_backward").default)
        for name in ("gelu", "silu", "hardswish", "sigmoid", "tanh")
    },
    "pow": _one(aten.pow.Tensor_Scalar, 2),
    "sqrt": lambda t: (aten.sqrt.default, (t.positive(),)),
    "rsqrt": lambda t: (aten.rsqrt.default, (t.positive(),)),
    "clamp": _one(aten.clamp.default, -1.0, 1.0),
    "threshold_backward": _two(aten.threshold_backward.default, 0),
    "leaky_relu": _one(aten.leaky_relu.default, 0.01),
    "leaky_relu_backward": _two(aten.leaky_relu_backward.default, 0.01, False),
    "hardtanh": _one(aten.hardtanh.default, 0.0, 6.0),
    "hardtanh_backward": _two(aten.hardtanh_backward.default, 0.0, 6.0),
    "softplus_backward": _two(aten.softplus_backward.default, 1.0, 20.0),
    "where": lambda t: (aten.where.self, (_mask(x := t.flat()), x, torch.ones_like(x))),
    "masked_fill": lambda t: (aten.masked_fill.Scalar, (x := t.flat(), _mask(x), 0.0)),
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _backward(
        aten.native_layer_norm_backward.default,
        _layer_norm,
        lambda a, out: (torch.ones_like(a[0]), *a[:2], *out[1:], *a[2:4], [True] * 3),
    ),
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _backward(
        aten.native_batch_norm_backward.default,
        _batch_norm,
        lambda a, out: (
            *(torch.ones_like(a[0]), *a[:2], *a[3:5], *out[1:]),
            *(True, 1e-5, [True] * 3),
        ),
    ),
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _backward(
        aten.native_group_norm_backward.default,
        _group_norm,
        lambda a, out: (torch.ones_like(a[0]), a[0], *out[1:], a[1], *a[3:7], [True] * 3),
    ),
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
    "sum": lambda t: (aten.sum.dim_IntList, (t.rows(), [0], True)),
    "mean": lambda t: (aten.mean.dim, (t.images(), [2, 3])),
    "cumsum": lambda t: (aten.cumsum.default, (t.rows(), -1)),
    "amax": lambda t: (aten.amax.default, (t.rows(), [-1], True)),
    "sort": lambda t: (aten.sort.default, (t.rows(), -1)),
    "topk": lambda t: (aten.topk.default, (t.rows(), 8, -1)),
    "max_pool2d_with_indices": _max_pool,
    "max_pool2d_with_indices_backward": _max_pool_backward(
        aten.max_pool2d_with_indices_backward.default, _max_pool, 2
    ),
    "max_pool3d_with_indices": _max_pool_volumes,
    "max_pool3d_with_indices_backward": _max_pool_backward(
        aten.max_pool3d_with_indices_backward.default, _max_pool_volumes, 3
    ),
    "avg_pool2d": lambda t: (aten.avg_pool2d.default, (t.images(), [2, 2], [2, 2])),
    "avg_pool2d_backward": _avg_pool_backward,
    "upsample_nearest2d": _resize(aten.upsample_nearest2d.default),
    "upsample_nearest2d_backward": _resize_backward(aten.upsample_nearest2d_backward.default),
    "upsample_bilinear2d": _resize(aten.upsample_bilinear2d.default, False),
    "upsample_bilinear2d_backward": _resize_backward(
        aten.upsample_bilinear2d_backward.default, False
    ),
    "embedding": lambda t: (aten.embedding.default, (x := t.rows(), t.row_index(x))),
    "embedding_dense_backward": lambda t: (
        aten.embedding_dense_backward.default,
        (x := t.rows(), t.row_index(x), x.shape[0], -1, False),
    ),
    "index_select": lambda t: (aten.index_select.default, (x := t.rows(), 0, t.row_index(x))),
    "index": lambda t: (aten.index.Tensor, (x := t.rows(), [t.row_index(x)])),
    "index_put": lambda t: (
        aten.index_put.default,
        (x := t.rows(), [t.row_index(x)], torch.ones_like(x), True),
    ),
    "index_add": lambda t: (
        aten.index_add.default,
        (x := t.rows(), 0, t.row_index(x), torch.ones_like(x)),
    ),
    "gather": lambda t: (aten.gather.default, (x := t.rows(), 1, t.places(x))),
    "scatter_add": lambda t: (
        aten.scatter_add.default,
        (x := t.rows(), 1, t.places(x), torch.ones_like(x)),
    ),
    "cat": lambda t: (aten.cat.default, ([x := t.images(2), torch.ones_like(x)], 1)),
    "stack": lambda t: (aten.stack.default, ([x := t.half_rows(0), torch.ones_like(x)], 1)),
    # As in `.contiguous()` and `reshape`: a copy from another order in memory.
    "clone": lambda t: (aten.clone.default, (t.rows().t(),)),
    "copy_": lambda t: (aten.copy_.default, (torch.empty_like(x := t.rows()), x)),
    "constant_pad_nd": lambda t: (aten.constant_pad_nd.default, (t.images(), [1, 1, 1, 1], 0.0)),
    "slice_backward": _slice_backward,
}
