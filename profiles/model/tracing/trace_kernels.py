"""Kernels that a dispatched aten call launches on an accelerator: one, up to three for the
gradients of a convolution, or several for a recurrent layer.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from profiles.model.fake_tensors.trace_fakes import tensors_in
from profiles.model.graph import RECURRENCES, SCAN, Op, OpKind, Phase
from profiles.model.kernels import DeviceKernel, Direction, Kernel
from profiles.model.tracing.trace_ops import dtype_name, tensor_bytes
from profiles.model.tracing.trace_scans import scan_flop

_CONVOLUTIONS = ("convolution", "convolution_overrideable")
_CONVOLUTION_BACKWARD = "convolution_backward"
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
# Kernels that read one tensor (in a backward two) in memory order.
_STRAIGHT = (Kernel.BATCH_NORM, Kernel.ROW_NORM, Kernel.SOFTMAX)
# The first match wins; ops without a match are elementwise.
_WORDS = (
    (Kernel.BATCH_NORM, ("batch_norm",)),
    (Kernel.ROW_NORM, ("layer_norm", "group_norm", "rms_norm")),
    (Kernel.SOFTMAX, ("softmax",)),
    (Kernel.RESIZE, ("upsample", "grid_sampler")),
    (Kernel.POOL, ("pool", "im2col", "col2im")),
    (Kernel.SORT, ("sort", "topk", "unique")),
    (Kernel.FFT, ("fft",)),
    (Kernel.SCATTER, ("embedding_dense_backward", "index_put", "scatter", "index_add")),
    (Kernel.GATHER, ("embedding", "gather", "index_select", "take")),
    (Kernel.TRANSPOSE, ("clone", "roll", "flip")),
    (
        Kernel.COPY,
        ("copy", "cat", "stack", "pad", "slice", "select", "index", "repeat", "split", "unfold"),
    ),
    (Kernel.FILL, ("zeros", "ones", "zero_", "fill", "full", "arange")),
    (Kernel.ELEMENTWISE, ("nll_loss", "masked_fill", "where", "clamp")),
    (
        Kernel.REDUCTION,
        ("sum", "mean", "norm", "amax", "amin", "argmax", "var", "std", "prod", "cumsum"),
    ),
)
_EMPTY = ("empty", "new_empty", "lift")


def device_kernels(
    op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
) -> tuple[DeviceKernel, ...]:
    """The kernels of the call described by `op` (`describe_op`)."""
    name, phase = op.name, op.phase
    if op.kind is OpKind.VIEW or name.startswith(_EMPTY):
        return ()
    if name in _CONVOLUTIONS:
        x, weight = args[0], args[1]
        last = is_channels_last(x) or is_channels_last(weight)
        parts = ((Direction.OUTPUT, x, weight, out),)
        return (*_convolution(parts, args[3:9], phase), *_straightened(x, phase, last=last))
    if name == _CONVOLUTION_BACKWARD:
        return _convolution_backward(args, phase)
    if name in RECURRENCES:
        return recurrence_kernels(name, args, phase)
    made = _one_kernel(op, args, kwargs, out)
    copies: tuple[DeviceKernel, ...] = ()
    if made.kernel in _STRAIGHT:
        for x in args[: 1 if phase is Phase.FORWARD else 2]:
            # A forward recomputed in the backward has sizes as its second argument.
            if isinstance(x, Tensor):
                copies += _straightened(x, phase, last=is_channels_last(x))
    return (made, *copies)


def _one_kernel(op: Op, args: Any, kwargs: Any, out: Any) -> DeviceKernel:
    tensors = tensors_in((args, kwargs))
    floating = [x for x in tensors if x.is_floating_point()]
    largest = max(floating, key=Tensor.numel, default=None)
    backward = op.phase is Phase.BACKWARD
    made = DeviceKernel(
        kernel=_kernel(op.name, op),
        backward=backward,
        dtype=op.dtype if largest is None else dtype_name(largest.dtype),
        work_flop=op.work_flop,
        read_bytes=op.read_bytes,
        written_bytes=op.written_bytes,
        channels_last=largest is not None and is_channels_last(largest),
    )
    if op.name.startswith(SCAN) and op.matmul is None:
        return replace(made, dtype="float32", work_flop=scan_flop(args))
    if op.matmul is not None:
        shape = op.matmul
        return replace(made, batch=shape.batch, m=shape.m, n=shape.n, k=shape.k)
    if made.kernel is Kernel.BATCH_NORM and largest is not None:
        # The statistics are a separate pass: x, x -> y and x, dy, x, dy -> dx.
        size = tensor_bytes(largest)
        return replace(made, read_bytes=size * (4 if backward else 2), written_bytes=size)
    if op.name == "clone" and len(tensors) == 1 and tensors[0].stride() == out.stride():
        made = replace(made, kernel=Kernel.COPY)
    if op.name == "embedding":  # reads the selected rows, not the table
        return replace(made, read_bytes=made.written_bytes)
    return made


def _kernel(name: str, op: Op) -> Kernel:
    if op.attention is not None:
        return Kernel.ATTENTION
    if op.matmul is not None:
        return Kernel.BATCHED_MATMUL if op.matmul.batch > 1 else Kernel.MATMUL
    for kernel, words in _WORDS:
        if any(word in name for word in words):
            return kernel
    return Kernel.ELEMENTWISE


def is_channels_last(x: Tensor) -> bool:
    """Whether the channels of a batch of images or volumes are innermost in memory.

    A tensor with one position per channel has both layouts; its strides decide, as in torch's
    suggest_memory_format.
    """
    form = _LAST.get(x.dim())
    if form is None or not x.is_contiguous(memory_format=form):
        return False
    return not x.is_contiguous() or (x.shape[1] > 1 and x.stride(-1) == x.shape[1])


def laid_out(func: Any, args: tuple[Any, ...], out: Any) -> Any:
    """The result of a convolution in cuDNN's layout: channels-last if its input or its weight is
    (aten/src/ATen/native/ConvUtils.h). On shapes torch returns channels-first, as on a CPU without
    oneDNN."""
    name = func._schema.name.removeprefix("aten::")
    if name in _CONVOLUTIONS:
        return _last(out) if any(map(is_channels_last, args[:2])) else out
    if name == _CONVOLUTION_BACKWARD and any(map(is_channels_last, args[:3])):
        return tuple(_last(x) if isinstance(x, Tensor) and x.dim() > 3 else x for x in out)
    return out


def _last(x: Tensor) -> Tensor:
    form = _LAST.get(x.dim())
    return x if form is None else torch.empty_like(x, memory_format=form)


def _straightened(x: Tensor, phase: Phase, *, last: bool) -> tuple[DeviceKernel, ...]:
    """The copy of a tensor whose layout a kernel cannot read directly."""
    form = _LAST.get(x.dim(), torch.contiguous_format) if last else torch.contiguous_format
    if x.is_contiguous(memory_format=form):
        return ()
    size = tensor_bytes(x)
    copy = DeviceKernel(
        kernel=Kernel.TRANSPOSE,
        backward=phase is Phase.BACKWARD,
        dtype=dtype_name(x.dtype),
        read_bytes=size,
        written_bytes=size,
    )
    return (copy,)


def _convolution_backward(args: tuple[Any, ...], phase: Phase) -> tuple[DeviceKernel, ...]:
    y, x, weight = args[0], args[1], args[2]
    wanted = args[10]
    parts = [
        (direction, x, weight, y)
        for direction, needed in (
            (Direction.INPUT_GRADIENT, wanted[0]),
            (Direction.WEIGHT_GRADIENT, wanted[1]),
        )
        if needed
    ]
    made = list(_convolution(tuple(parts), args[4:10], phase))
    last = is_channels_last(x) or is_channels_last(weight)
    made += [copy for z in (y, x) for copy in _straightened(z, phase, last=last)]
    if wanted[2]:
        made.append(
            DeviceKernel(
                kernel=Kernel.REDUCTION,
                backward=True,
                dtype=dtype_name(y.dtype),
                read_bytes=tensor_bytes(y),
                channels_last=is_channels_last(y),
            )
        )
    return tuple(made)


def _convolution(
    parts: tuple[tuple[Direction, Tensor, Tensor, Tensor], ...],
    settings: tuple[Any, ...],
    phase: Phase,
) -> tuple[DeviceKernel, ...]:
    """Kernels of a convolution, for each of its directions.

    settings  stride, padding, dilation, transposed, output padding, groups
    """
    stride, _, dilation, transposed, _, groups = settings
    made = []
    for direction, x, weight, y in parts:
        wide, narrow = (y, x) if transposed else (x, y)  # before and after a plain convolution
        taps = max(1, math.prod(weight.shape[2:]))
        into, out_of = wide.shape[1] // groups, narrow.shape[1] // groups
        outputs, inputs = narrow.numel() // narrow.shape[1], wide.numel() // wide.shape[1]
        of_output, of_input = (outputs, out_of, into * taps), (inputs, into, out_of * taps)
        if direction is Direction.WEIGHT_GRADIENT:
            m, n, k = out_of, into * taps, outputs
        elif (direction is Direction.OUTPUT) != transposed:
            m, n, k = of_output
        else:
            m, n, k = of_input
        sizes = {
            Direction.OUTPUT: ((x, weight), y),
            Direction.INPUT_GRADIENT: ((y, weight), x),
            Direction.WEIGHT_GRADIENT: ((x, y), weight),
        }
        read, written = sizes[direction]
        made.append(
            DeviceKernel(
                kernel=_convolution_kernel(groups, wide.shape[1], narrow.shape[1], taps),
                backward=phase is Phase.BACKWARD,
                dtype=dtype_name(x.dtype),
                direction=direction,
                work_flop=2 * outputs * taps * groups * into * out_of,
                read_bytes=sum(map(tensor_bytes, read)),
                written_bytes=tensor_bytes(written),
                batch=groups,
                m=m,
                n=n,
                k=k,
                taps=taps,
                stride=max(stride),
                dilation=max(dilation),
                spatial=weight.dim() - 2,
                channels_last=is_channels_last(x) or is_channels_last(weight),
            )
        )
    return tuple(made)


def _convolution_kernel(groups: int, wide: int, narrow: int, taps: int) -> Kernel:
    if groups > 1:
        return Kernel.DEPTHWISE if groups == wide and narrow % wide == 0 else Kernel.GROUPED
    return Kernel.CONV_1X1 if taps == 1 else Kernel.CONV


def recurrence_kernels(name: str, args: tuple[Any, ...], phase: Phase) -> tuple[DeviceKernel, ...]:
    """Kernels of a recurrent layer in cuDNN, launched by one host call: the products of
    x [length, batch, inputs] and weights [gates, inputs], [gates, size]."""
    backward = name.endswith("backward")
    x, w_state = (args[place + int(backward)] for place in (0, 4))
    length, batch, inputs = x.shape
    gates, size = w_state.shape

    def product(
        m: int, n: int, k: int, kernel: Kernel = Kernel.MATMUL, count: int = 1
    ) -> DeviceKernel:
        return DeviceKernel(
            kernel=kernel,
            backward=phase is Phase.BACKWARD,
            dtype=dtype_name(x.dtype),
            work_flop=2 * m * n * k,
            read_bytes=x.element_size() * (m * k + k * n),
            written_bytes=x.element_size() * m * n,
            batch=1,
            m=m,
            n=n,
            k=k,
            count=count,
        )

    rows = length * batch
    if not backward:
        each = product(batch, gates, size, Kernel.RECURRENCE, count=length)
        return (product(rows, gates, inputs), each)
    return (
        product(rows, inputs, gates),
        product(gates, inputs, rows),
        product(gates, size, rows),
        product(batch, size, gates, Kernel.RECURRENCE, count=length),
    )
