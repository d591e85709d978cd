"""Memory-bound aten ops by name, forward and backward, which differ too much for one curve.

On a CPU a normalization, a pooling or a scatter takes up to twenty times as long as an addition of
the same bytes. The ops are the ones of autograd in a training step, on shapes of training: rows
of 512, images of 32 channels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from profiles.errors import InputError
from profiles.hardware.catalogue.device import ACROSS
from profiles.hardware.probe.recorded_calls import Call, recorded_call
from profiles.model.tracing.trace_ops import moved_bytes_of

aten = torch.ops.aten

_ROW, _CHANNELS = 512, 32
_SIDES = (32, 16, 8, 4)


class Tensors:
    """Tensors of about `count` elements for one op; on the meta device they have only shapes.

    trained  they require gradients
    """

    def __init__(
        self, count: int, dtype: torch.dtype, device: torch.device, *, trained: bool
    ) -> None:
        self.count, self.dtype, self.device = max(1, count), dtype, device
        self.trained = trained

    def flat(self) -> Tensor:
        """[count]"""
        return self._made((self.count,))

    def rows(self, divided: int = 1) -> Tensor:
        """[rows, 512] of count / divided elements, or one shorter row"""
        count = max(1, self.count // divided)
        return self._made((max(1, count // _ROW), min(_ROW, self.count)))

    def columns(self) -> Tensor:
        """[batch, 512, rows]: the output of a head after `transpose(1, 2)`, as a loss takes it"""
        x = self.rows()
        return x.view(4 if x.shape[0] % 4 == 0 else 1, -1, x.shape[1]).transpose(1, 2)

    def images(self, divided: int = 1) -> Tensor:
        """[batch, 32, side, side] of count / divided elements"""
        count = max(1, self.count // divided)
        side = next((s for s in _SIDES if 2 * _CHANNELS * s * s <= count), _SIDES[-1])
        return self._made((max(1, count // (_CHANNELS * side * side)), _CHANNELS, side, side))

    def weights(self, size: int, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """Scale and shift of a normalization, [size] each"""
        made = (torch.ones(size, device=self.device), torch.zeros(size, device=self.device))
        scale, shift = (x.to(dtype or self.dtype).requires_grad_(self.trained) for x in made)
        return scale, shift

    def index(self, *shape: int, below: int) -> Tensor:
        """Numbers below a limit in random order"""
        if self.device.type == "meta":
            return torch.empty(shape, dtype=torch.int64, device="meta")
        return torch.randint(0, max(1, below), shape, device=self.device)

    def _made(self, shape: tuple[int, ...]) -> Tensor:
        made = torch.randn(shape, device=self.device).to(self.dtype)
        return made.requires_grad_(self.trained)


Forward = Callable[[Tensors], Any]


def aten_names() -> tuple[str, ...]:
    """All ops that are measured by name; see ACROSS for the suffix of some."""
    return tuple(sorted(_OPS))


def aten_call(name: str, count: int, dtype: torch.dtype, device: torch.device) -> Call:
    """The op and its arguments on tensors of about `count` elements.

    Raises InputError for a name outside of `aten_names`.
    """
    if name not in _OPS:
        raise InputError(f"aten op {name!r} has no case; there are {', '.join(aten_names())}")
    tensors = Tensors(count, dtype, device, trained="backward" in name)
    return recorded_call(name.removesuffix(ACROSS), lambda: _OPS[name](tensors))


def aten_bytes(name: str, count: int, dtype: str) -> int:
    """Bytes that the op reads and writes, as the tracer counts them (trace_ops.describe_op)."""
    func, args = aten_call(name, count, getattr(torch, dtype), torch.device("meta"))
    return moved_bytes_of(func, args, {}, func(*args))


def _elementwise(name: str, tensors: int = 1) -> Forward:
    return lambda t: getattr(aten, name)(*(t.flat() for _ in range(tensors)))


def _batch_norm(t: Tensors) -> Tensor:
    x, running = t.images(), (torch.zeros(_CHANNELS), torch.ones(_CHANNELS))
    mean, variance = (each.to(x.device) for each in running)
    return F.batch_norm(x, mean, variance, *t.weights(_CHANNELS, torch.float32), training=True)


def _upsampled(mode: str, t: Tensors) -> Tensor:
    return F.interpolate(t.images(4), scale_factor=2, mode=mode)


def _of_index(op: Callable[[Tensor, Tensor], Tensor]) -> Forward:
    """A forward of an op on rows and [rows] row numbers in random order."""
    return lambda t: op(x := t.rows(), t.index(x.shape[0], below=x.shape[0]))


def _of_places(op: Callable[[Tensor, Tensor], Tensor]) -> Forward:
    """A forward of an op on rows and [rows, 512] random positions in a row."""
    return lambda t: op(x := t.rows(), t.index(*x.shape, below=x.shape[1]))


def _mask(x: Tensor) -> Tensor:
    return torch.zeros(x.shape, dtype=torch.bool, device=x.device)


_SMOOTH = ("gelu", "silu", "hardswish", "sigmoid", "tanh", "leaky_relu", "softplus")

# Names of ops -> the forward that calls them or whose backward does.
_PASSES: dict[tuple[str, ...], Forward] = {
    **{(name,): _elementwise(name, 2) for name in ("add", "add_", "sub", "mul", "div")},
    **{(name,): _elementwise(name) for name in ("neg", "exp", "sin", "abs", "elu")},
    **{(name, f"{name}_backward"): _elementwise(name) for name in _SMOOTH},
    ("relu", "threshold_backward"): _elementwise("relu"),
    ("hardtanh", "hardtanh_backward"): lambda t: F.hardtanh(t.flat(), 0.0, 6.0),
    ("pow",): lambda t: t.flat() ** 2,
    ("sqrt",): lambda t: t.flat().abs().sqrt(),
    ("rsqrt",): lambda t: (t.flat().abs() + 1e-3).rsqrt(),
    ("clamp",): lambda t: t.flat().clamp(-1.0, 1.0),
    ("where",): lambda t: torch.where(_mask(x := t.flat()), x, torch.ones_like(x)),
    ("masked_fill",): lambda t: (x := t.flat()).masked_fill(_mask(x), 0.0),
    ("native_layer_norm", "native_layer_norm_backward"): lambda t: F.layer_norm(
        x := t.rows(), x.shape[-1:], *t.weights(x.shape[-1])
    ),
    ("native_batch_norm", "native_batch_norm_backward"): _batch_norm,
    ("native_group_norm", "native_group_norm_backward"): lambda t: F.group_norm(
        t.images(), 8, *t.weights(_CHANNELS)
    ),
    ("_softmax", "_softmax_backward_data"): lambda t: t.rows().softmax(-1),
    ("_log_softmax", "_log_softmax_backward_data"): lambda t: t.rows().log_softmax(-1),
    (f"_softmax{ACROSS}", f"_softmax_backward_data{ACROSS}"): lambda t: t.columns().softmax(1),
    (f"_log_softmax{ACROSS}", f"_log_softmax_backward_data{ACROSS}"): lambda t: (
        t.columns().log_softmax(1)
    ),
    ("sum",): lambda t: t.rows().sum(0, keepdim=True),
    ("mean",): lambda t: t.images().mean((2, 3)),
    ("cumsum",): lambda t: t.rows().cumsum(-1),
    ("amax",): lambda t: t.rows().amax(-1, keepdim=True),
    ("sort",): lambda t: t.rows().sort(-1),
    ("topk",): lambda t: t.rows().topk(8, -1),
    ("max_pool2d_with_indices", "max_pool2d_with_indices_backward"): lambda t: F.max_pool2d(
        t.images(), 2
    ),
    # Volumes [batch, 32, side / 2, 2, side]
    ("max_pool3d_with_indices", "max_pool3d_with_indices_backward"): lambda t: F.max_pool3d(
        t.images().unflatten(2, (-1, 2)), 2
    ),
    ("avg_pool2d", "avg_pool2d_backward"): lambda t: F.avg_pool2d(t.images(), 2),
    **{
        (f"upsample_{mode}2d", f"upsample_{mode}2d_backward"): partial(_upsampled, mode)
        for mode in ("nearest", "bilinear")
    },
    ("embedding", "embedding_dense_backward"): _of_index(lambda x, index: F.embedding(index, x)),
    ("index_select",): _of_index(lambda x, index: x.index_select(0, index)),
    ("index",): _of_index(lambda x, index: x[index]),
    ("index_put",): _of_index(lambda x, index: x.index_put((index,), torch.ones_like(x), True)),
    ("index_add",): _of_index(lambda x, index: x.index_add(0, index, torch.ones_like(x))),
    ("gather",): _of_places(lambda x, places: x.gather(1, places)),
    ("scatter_add",): _of_places(lambda x, places: x.scatter_add(1, places, torch.ones_like(x))),
    ("cat",): lambda t: torch.cat([x := t.images(2), torch.ones_like(x)], 1),
    ("stack",): lambda t: torch.stack([x := t.rows(2), torch.ones_like(x)], 1),
    # As in `.contiguous()` and `reshape`: a copy from another order in memory.
    ("clone",): lambda t: t.rows().t().clone(),
    ("copy_",): lambda t: torch.empty_like(x := t.rows()).copy_(x),
    ("constant_pad_nd",): lambda t: F.pad(t.images(), (1, 1, 1, 1)),
    ("slice_backward",): lambda t: (x := t.rows())[:, : max(1, x.shape[1] // 2)],
}
_OPS = {name: forward for names, forward in _PASSES.items() for name in names}
