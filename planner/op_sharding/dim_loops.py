"""Loops of ops that run over the dims of their tensors: views, element-wise ops, reductions."""

from __future__ import annotations

import math

from planner.op_sharding.loop import Dims, Loop, OpCall


def view(call: OpCall) -> tuple[Loop, ...]:
    """Dims whose outermost part is that of a dim of the input.

    Over a contiguous input a dim of n elements at stride s spans n s elements; a cut of it is a cut
    of the input's dim of equal span (its outermost part, where dims are merged or divided).
    """
    shape = call.input_shape(0)
    inner = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    spans: dict[int, int] = {}
    for d, n in enumerate(shape):
        if n > 1:
            spans[n * inner[d]] = d
    rest: Dims = (None,) * (len(call.inputs) - 1)
    found: dict[int, list[int | None]] = {}
    for number, strides in enumerate(call.op.strides):
        out = call.outputs[number].shape
        for e, (n, stride) in enumerate(zip(out, strides, strict=True)):
            source = spans.get(n * stride)
            if source is not None and n > 1:
                found.setdefault(source, [None] * len(call.outputs))[number] = e
    return tuple(
        Loop(role="", inputs=(d, *rest), outputs=tuple(outs))
        for d, outs in sorted(found.items())
        if None not in outs
    )


def elementwise(call: OpCall, *, without: tuple[int, ...] = ()) -> tuple[Loop, ...]:
    """One loop per dim of the (broadcast) output."""
    out = call.out
    loops = []
    for e, n in enumerate(out):
        if n == 1 or e in without:
            continue
        dims: list[int | None] = []
        for x in call.inputs:
            d = e - (len(out) - len(x.shape))
            dims.append(d if d >= 0 and x.shape[d] == n else None)
        same = all(len(x.shape) == len(out) and x.shape[e] == n for x in call.outputs)
        if same:
            loops.append(Loop(role="", inputs=tuple(dims), outputs=(e,) * len(call.outputs)))
    return tuple(loops)


def along_dims(call: OpCall) -> tuple[Loop, ...]:
    """As element-wise, without the dims that the op works along; none known: the last."""
    return elementwise(call, without=call.dims or (len(call.out) - 1,))


def joined(call: OpCall) -> tuple[Loop, ...]:
    """Concatenation: all dims but that along which tensors are joined."""
    return elementwise(call, without=call.dims)


def normalised(call: OpCall) -> tuple[Loop, ...]:
    """Normalisation over the last dims: the others are loops, weight and bias lack them."""
    option = call.op.option("normalized")
    count = option[0] if isinstance(option, tuple) else 1
    rank = len(call.out)
    rest: Dims = (None,) * (len(call.inputs) - 1)
    return tuple(
        Loop(role="", inputs=(d, *rest), outputs=(d,))
        for d in range(rank - count)
        if call.out[d] > 1
    )


def reduced(call: OpCall) -> tuple[Loop, ...]:
    """A reduction: kept dims, and for sums the reduced ones, over which the output is partial."""
    shape, out = call.input_shape(0), call.out
    gone = call.dims or tuple(range(len(shape)))
    keeps = len(out) == len(shape)
    sums = call.op.name in ("sum", "mean")
    loops = []
    for d, n in enumerate(shape):
        if n == 1:
            continue
        if d not in gone:
            e = d if keeps else d - sum(g < d for g in gone)
            loops.append(Loop(role="", inputs=(d,), outputs=(e,) * len(call.outputs)))
        elif sums:
            loops.append(Loop(role="", inputs=(d,), outputs=(None,)))
    return tuple(loops)
