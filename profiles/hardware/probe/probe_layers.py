"""Layers of a probe, forward and backward: the kinds of convolutions that kernels tell apart, and
LSTM, GRU and RNN layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from profiles.model.graph import CHANNELS_LAST, Op, Phase
from profiles.model.tracing.trace_fused import LAYERS
from profiles.model.tracing.trace_ops import describe_op

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvCase:
    """A convolution of [batch, inputs, side, ...] with `outputs` channels of a square window.

    first  of a network, whose input needs no gradient
    last   all of its tensors are channels-last
    """

    batch: int
    inputs: int
    outputs: int
    side: int
    window: int = 3
    stride: int = 1
    groups: int = 1
    dims: int = 2
    transposed: bool = False
    first: bool = False
    last: bool = False

    def __str__(self) -> str:
        kind = "first " if self.first else "transposed " if self.transposed else ""
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        groups += CHANNELS_LAST if self.last else ""
        return (
            f"{kind}{self.dims}-D {self.window}/{self.stride} of {self.batch}x{self.inputs}"
            f"x{self.side} to {self.outputs}{groups}"
        )


def _cases(*rows: tuple[int, ...], **more: int | bool) -> tuple[ConvCase, ...]:
    names = ("batch", "inputs", "outputs", "side", "window", "stride")
    return tuple(ConvCase(**dict(zip(names, row, strict=False)), **more) for row in rows)  # type: ignore[arg-type]  # one mapping of two types


def _depthwise(*rows: tuple[int, int, int, int, int], last: bool = False) -> tuple[ConvCase, ...]:
    return tuple(
        ConvCase(batch=b, inputs=c, outputs=c, side=s, window=w, stride=t, groups=c, last=last)
        for b, c, s, w, t in rows
    )


# Two of each kind: small as in a network for images of 32, and as in one for images of 224.
QUICK_CONVOLUTIONS = (
    *_cases((4, 16, 32, 16), (2, 64, 64, 32)),
    *_cases((4, 64, 128, 8, 1), (2, 64, 256, 28, 1)),
    *_depthwise((4, 32, 16, 3, 1), (2, 128, 28, 7, 1)),
    *_cases((4, 64, 64, 16), groups=8),
    *_cases((4, 32, 64, 512), dims=1),
    *_cases((2, 16, 32, 12), (1, 16, 32, 12), dims=3),
    *_cases((2, 64, 32, 16, 2, 2), transposed=True),
    *_cases((8, 3, 32, 32), (2, 3, 64, 112, 7, 2), first=True),
    # One image of few pixels, where the weights are what is read: without it a ResNet-50 in
    # micro-batches of one took three times as long as told.
    *_cases((1, 512, 512, 3), (1, 128, 128, 12), (1, 2048, 512, 3, 1), (1, 256, 1024, 6, 1)),
)
CONVOLUTIONS = (
    *QUICK_CONVOLUTIONS,
    *_cases((8, 16, 16, 8), (8, 64, 128, 16, 3, 2), (4, 3, 64, 64, 8, 8)),
    *_cases((8, 128, 128, 8), (1, 256, 256, 28), (4, 512, 512, 7), (1, 32, 32, 96)),
    *_cases((2, 128, 32, 4), (4, 256, 256, 6), (4, 512, 512, 3)),
    *_cases((8, 16, 64, 32, 1), (1, 512, 128, 28, 1), (8, 512, 512, 7, 1), (8, 8, 16, 8, 1)),
    *_cases((2, 256, 128, 8, 1), (2, 512, 128, 4, 1), (2, 1024, 512, 2, 1), (4, 368, 368, 3, 1)),
    *_cases((4, 152, 152, 6, 1), (8, 48, 48, 12, 1), (4, 96, 16, 48, 1)),
    # On one pixel (squeeze and excitation) and on few, where torch multiplies image by image.
    *_cases((4, 256, 64, 1, 1), (4, 64, 256, 1, 1), (8, 32, 8, 1, 1), (2, 1024, 256, 1, 1)),
    *_cases((4, 128, 128, 3, 1), (4, 64, 64, 6, 1), (2, 32, 32, 12, 1), (4, 16, 64, 24, 1)),
    *_cases((4, 256, 1024, 4, 1), (4, 1024, 256, 4, 1), (2, 64, 256, 16, 1)),
    # Layers between stages of few pixels, where each call costs more than its work.
    *_cases((2, 32, 64, 16, 1, 2), (2, 128, 256, 6, 1, 2), (4, 64, 128, 8, 2, 2)),
    *_cases((4, 256, 512, 4, 1, 2), (4, 32, 48, 40, 1, 2), (8, 64, 64, 10, 3, 2)),
    *_depthwise((8, 96, 16, 5, 1), (8, 64, 32, 3, 2), (2, 384, 14, 3, 1), (4, 64, 56, 7, 1)),
    *_depthwise((4, 128, 3, 3, 1), (4, 32, 12, 3, 2)),
    # A depthwise backward takes time by its taps; between windows of 3 only it came out far off.
    *_depthwise((4, 240, 7, 5, 1), (2, 64, 14, 5, 2), (4, 24, 24, 3, 1), (2, 96, 40, 3, 1)),
    *_depthwise((4, 320, 4, 7, 1), (2, 48, 16, 7, 1)),
    # With a stride its backward in bf16 takes three times as long as read off those without (four
    # of a MobileNetV3: 15 ms, told as 5; two cores, torch 2.13, 2026-11-23).
    *_depthwise((4, 64, 28, 3, 2), (4, 256, 8, 5, 2), (2, 128, 14, 3, 2), (4, 96, 10, 5, 2)),
    *_depthwise((4, 16, 40, 3, 2), (2, 192, 6, 3, 2), (2, 48, 48, 5, 2), (4, 384, 8, 7, 2)),
    *_depthwise((4, 64, 6, 3, 1), (4, 16, 48, 3, 1)),
    *_cases((4, 128, 128, 96, 9), groups=128, dims=1),
    # Strides over large images, patches of 16, and few channels or few pixels.
    *_cases((2, 32, 64, 48, 1, 2), (2, 256, 512, 12, 1, 2), (2, 3, 128, 112, 16, 16)),
    *_cases((2, 24, 24, 64), (4, 512, 512, 4), (2, 96, 192, 12, 3, 2)),
    *_cases((2, 256, 256, 14), (2, 32, 32, 56), groups=4),
    *_cases((4, 152, 152, 12), (4, 304, 304, 6, 3, 2), groups=19),
    *_cases((2, 64, 64, 12, 3, 2), (2, 128, 128, 6), groups=8),
    *_cases((4, 256, 256, 4), (4, 256, 256, 8, 3, 2), (4, 32, 32, 40, 3, 2), groups=32),
    *_cases((8, 128, 128, 128, 5), (1, 64, 64, 4096), dims=1),
    *_cases((2, 32, 32, 16), (4, 16, 16, 6), (1, 32, 32, 16), dims=3),
    *_cases((4, 1, 32, 1024), dims=1, first=True),
    *_cases((2, 1, 16, 24), dims=3, first=True),
    *_cases((4, 128, 64, 8, 4, 2), (2, 32, 16, 48, 2, 2), transposed=True),
    # 14 modules of tests/measuring/modules had 190 other convolutions. Without what follows the
    # median error of their forward and backward was 16 %, with it and the stride as an axis 10 %
    # (two cores, torch 2.13, float32, 2026-11-23); what they missed showed which kinds were absent.
    # Few outputs: the last layer of what makes images, masks or waves.
    *_cases((4, 32, 3, 48), (2, 64, 1, 32), (8, 16, 3, 32), (2, 16, 2, 96), (4, 128, 3, 16)),
    *_cases((2, 48, 4, 64, 5), (4, 32, 3, 48, 1), (2, 64, 1, 24, 1), (4, 256, 20, 12, 1)),
    # The pyramid of image networks.
    *_cases((4, 64, 64, 16), (2, 128, 128, 14), (4, 256, 256, 7), (2, 96, 96, 24)),
    *_cases((4, 32, 32, 32), (8, 192, 192, 6), (2, 160, 160, 8), (8, 96, 96, 10)),
    *_cases((2, 48, 48, 40), (4, 384, 384, 3), (2, 64, 128, 32, 3, 2), (4, 128, 256, 14, 3, 2)),
    *_cases((2, 32, 64, 28, 3, 2), (4, 256, 384, 6, 3, 2)),
    *_cases((4, 64, 128, 14, 1, 2), (2, 256, 512, 8, 1, 2), (2, 24, 48, 48, 1, 2)),
    # Few pixels of many channels.
    *_cases((4, 128, 768, 3, 1), (2, 768, 128, 4, 1), (2, 256, 1024, 2, 1), (4, 512, 96, 3, 1)),
    *_cases((8, 160, 960, 3, 1), (2, 960, 160, 3, 1)),
    # The widest of these read their weights image by image: a PoolFormer's last layers, on 4 images
    # of 2 x 2, took 2 to 3 times as long as told (two cores, torch 2.13, float32, 2026-11-23).
    *_cases((4, 384, 1536, 2, 1), (4, 1536, 384, 2, 1), (8, 640, 1280, 2, 1), (2, 512, 2048, 3, 1)),
    *_cases((4, 768, 1024, 3, 1), (8, 256, 1024, 3, 1), (4, 288, 1152, 5, 1)),
    *_depthwise((4, 80, 20, 3, 2), (2, 160, 20, 3, 1), (2, 112, 40, 3, 2), (4, 480, 4, 5, 1)),
    *_depthwise((2, 960, 4, 5, 1), (2, 640, 5, 5, 1), (4, 40, 32, 3, 1), (8, 576, 5, 3, 1)),
    *_depthwise((4, 200, 10, 5, 1), (4, 88, 24, 3, 2)),
    *_cases((4, 3, 24, 80, 3, 2), (2, 3, 32, 64, 3, 1), (8, 1, 16, 28, 3, 1), first=True),
    *_cases((4, 3, 40, 56, 1, 2), (2, 3, 96, 64, 8, 8), first=True),
    *_cases((2, 16, 32, 8), (4, 32, 64, 4), (2, 32, 64, 8, 3, 2), (2, 64, 64, 8), dims=3),
    *_cases((2, 3, 16, 20), (4, 1, 8, 16), dims=3, first=True),
    *_cases((4, 48, 96, 800, 3), (2, 32, 32, 2500, 1), (4, 64, 128, 400, 5, 2), dims=1),
    # One image, as in pipelines of micro-batches of one: torch chooses other kernels then. 49 such
    # convolutions drawn at random came out 0.40 off in log without these and 0.19 with them (mean;
    # two cores, torch 2.13, float32, 2026-11-23).
    *_cases((1, 256, 256, 6), (1, 64, 64, 24), (1, 32, 32, 48), (1, 96, 96, 8), (1, 192, 192, 4)),
    *_cases((1, 384, 384, 6, 3, 2), (1, 128, 256, 14, 3, 2)),
    *_cases((1, 64, 128, 28, 3, 2), (1, 512, 512, 6, 3, 2), (2, 512, 512, 6, 3, 2)),
    *_cases((1, 512, 2048, 3, 1), (1, 1024, 256, 6, 1)),
    *_cases((1, 128, 32, 24, 1), (1, 48, 288, 12, 1), (1, 160, 26, 5, 1), (1, 64, 64, 40, 1)),
    *_cases((1, 768, 1536, 4, 1, 2), (2, 192, 48, 24, 1, 2), (1, 192, 384, 16, 1, 2)),
    *_depthwise((1, 768, 3, 3, 1), (1, 96, 28, 7, 1), (1, 240, 8, 5, 1), (1, 144, 24, 3, 2)),
    *_depthwise((1, 384, 7, 7, 1), (2, 32, 48, 3, 1), (2, 128, 8, 7, 2), (4, 256, 5, 5, 2)),
    *_depthwise((4, 288, 14, 3, 1), (1, 160, 18, 7, 2), (2, 96, 36, 7, 1)),
    # Channels-last: what lies so behind a permuted activation, and models that are put so.
    *_depthwise(
        (2, 96, 24, 7, 1), (2, 192, 12, 7, 1), (2, 384, 6, 7, 1), (1, 64, 40, 7, 1), last=True
    ),
    *_depthwise(
        (4, 768, 3, 7, 1), (4, 64, 24, 3, 1), (4, 32, 32, 3, 2), (2, 240, 10, 5, 1), last=True
    ),
    *_depthwise(
        (8, 128, 8, 3, 1), (4, 384, 6, 3, 1), (2, 144, 20, 5, 2), (1, 32, 56, 3, 1), last=True
    ),
    *_cases(
        (2, 64, 256, 28, 1), (4, 256, 64, 14, 1), (2, 512, 128, 7, 1), (8, 32, 64, 12, 1), last=True
    ),
    *_cases(
        (1, 128, 512, 10, 1),
        (4, 1024, 256, 4, 1),
        (2, 256, 1024, 3, 1),
        (4, 16, 96, 32, 1),
        last=True,
    ),
    *_cases(
        (2, 96, 96, 16, 1), (4, 48, 12, 20, 1), (1, 768, 192, 6, 1), (8, 384, 384, 4, 1), last=True
    ),
)


def conv_op(case: ConvCase, phase: Phase, dtype: str) -> Op:
    """The op that tracing makes of the call."""
    func, args = conv_call(case, phase, getattr(torch, dtype), torch.device("meta"))
    return describe_op(func, args, {}, func(*args), phase=phase, module="")


def conv_call(
    case: ConvCase, phase: Phase, dtype: torch.dtype, device: torch.device
) -> tuple[Any, tuple[Any, ...]]:
    """The op of a pass and its arguments, whose tensors are made."""

    def tensor(*shape: int) -> Tensor:
        made = torch.randn(shape, device=device).to(dtype)
        layout = torch.channels_last if case.last and made.dim() == 4 else torch.contiguous_format
        return made.contiguous(memory_format=layout)

    window = (case.window,) * case.dims
    x = tensor(case.batch, case.inputs, *((case.side,) * case.dims))
    inner = (case.inputs, case.outputs) if case.transposed else (case.outputs, case.inputs)
    weight = tensor(inner[0], inner[1] // case.groups, *window)
    pad = 0 if case.transposed else case.window // 2
    shape = ([case.stride] * case.dims, [pad] * case.dims, [1] * case.dims)
    more = (*shape, case.transposed, [0] * case.dims, case.groups)
    args = (x, weight, tensor(case.outputs), *more)
    if phase is Phase.FORWARD:
        return aten.convolution.default, args
    gradient = torch.ones_like(aten.convolution.default(*args))
    backward = (gradient, x, weight, [case.outputs], *more, [not case.first, True, True])
    return aten.convolution_backward.default, backward


# Positions of a measured sequence: the time of a layer grows with them, and this many hide what a
# call takes by itself.
_LENGTH = 32
_MODULES = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceCase:
    """A layer of `kind` with `inputs` and `size` features on a batch of sequences."""

    kind: str
    batch: int
    inputs: int
    size: int

    def __str__(self) -> str:
        return f"{self.kind} of {self.batch}x{self.inputs} to {self.size}"


_QUICK_SIZES = ((2, 64, 64), (8, 256, 256))
_SIZES = (*_QUICK_SIZES, (1, 128, 128), (32, 128, 256), (16, 64, 64), (4, 512, 512), (16, 128, 128))


def recurrence_layers(*, quick: bool) -> tuple[RecurrenceCase, ...]:
    """Layers as small as in a tagger and as large as in a speech model."""
    return tuple(
        RecurrenceCase(kind=kind, batch=batch, inputs=inputs, size=size)
        for kind in _MODULES
        for batch, inputs, size in (_QUICK_SIZES if quick or kind == "rnn" else _SIZES)
    )


def recurrence_op(case: RecurrenceCase, phase: Phase, dtype: str) -> Op:
    """The op that tracing makes of the layer."""
    kind = LAYERS[case.kind]
    device = torch.device("meta")

    def tensor(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=device)

    rows = kind.gates * case.size
    x, h = tensor(_LENGTH, case.batch, case.inputs), tensor(case.batch, case.size)
    args: tuple[torch.Tensor, ...] = (x, h, h, tensor(rows, case.inputs), tensor(rows, case.size))
    func = getattr(torch.ops.shardwright, f"{case.kind}_layer").default
    if phase is Phase.FORWARD:
        args = (*args, tensor(rows), tensor(rows))
    else:
        func = getattr(torch.ops.shardwright, f"{case.kind}_layer_backward").default
        kept = tensor(_LENGTH, case.batch, kind.saved * case.size)
        args = (tensor(_LENGTH, case.batch, case.size), *args, kept)
    return describe_op(func, args, {}, func(*args), phase=phase, module="")


def recurrence_call(case: RecurrenceCase, phase: Phase, dtype: torch.dtype) -> Callable[[], object]:
    """The layer's pass, its tensors made. Nothing drives the weights out of the caches: all
    positions but the first find them there in a step too."""
    layer = _MODULES[case.kind](case.inputs, case.size).to(dtype)
    x = torch.randn(_LENGTH, case.batch, case.inputs).to(dtype).requires_grad_()

    def forward() -> torch.Tensor:
        out: torch.Tensor = layer(x)[0]
        return out

    if phase is Phase.FORWARD:
        return forward
    out = forward()
    gradient = torch.ones_like(out)
    wanted = (x, *layer.parameters())
    return lambda: torch.autograd.grad(out, wanted, gradient, retain_graph=True)
