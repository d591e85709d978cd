"""Kind, FLOPs, bytes and shapes of one recorded aten op."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from profiles.errors import TraceError
from profiles.hardware.catalogue.device import ACROSS
from profiles.model.fake_tensors.trace_fakes import tensors_in
from profiles.model.graph import (
    RECURRENCES,
    SCAN,
    AttentionShape,
    ConvShape,
    MatmulShape,
    Op,
    OpKind,
    Phase,
)
from profiles.model.tracing.trace_scans import scan_flop, scan_products

# Ops that must have a FLOP formula; without one they would count as free.
_MATMUL_NAMES: tuple[str, ...] = (
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "_grouped_mm",
    "_scaled_mm",
    "linear",
    "dot",
    "mv",
)
_MATMUL_NAMES += tuple(RECURRENCES)
_MATMUL_NAMES += ("addmv", "addbmm", "_scaled_grouped_mm", "mkldnn_rnn_layer", "addr", "einsum")
_MATMUL_NAMES += ("_trilinear",)
# Whether there is a batch, and the index of the first factor among the arguments.
_FACTORS = {
    "mm": (False, 0),
    "_scaled_mm": (False, 0),
    "addmm": (False, 1),
    "bmm": (True, 0),
    "baddbmm": (True, 1),
    "addbmm": (True, 1),
    "dot": (False, 0),
    "mv": (False, 0),
    "addmv": (False, 1),
}
_CONV_NAMES = ("convolution", "_convolution", "convolution_backward", "convolution_overrideable")

# Softmaxes, and the index of their dimension among the arguments.
_SOFTMAXES = {
    "_softmax": 1,
    "_log_softmax": 1,
    "_softmax_backward_data": 2,
    "_log_softmax_backward_data": 2,
}

# They read only as many rows of their first tensor as they return.
_GATHERS = ("embedding", "index_select", "index", "gather")

_NO_WORK = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "lift_fresh",
    "detach",
    "alias",
    "_unsafe_view",
    "_reshape_alias",
    "view",
    "reshape",
    "set_",
    "resize_",
}


def describe_op(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    out: Any,
    *,
    phase: Phase,
    module: str,
) -> Op:
    """The `Op` of a dispatched call.

    FLOPs are from torch.utils.flop_counter (one multiply-add = 2), with missing formulas added
    here. Causal attention counts the computed half, the weight gradient of a grouped convolution
    its groups (`_of_groups`). Raises TraceError for a matmul-like op without a formula.
    """
    name = _name(func)
    inputs, outputs = tensors_in((args, kwargs)), tensors_in(out)
    dtype = _arithmetic_dtype(inputs, outputs)
    kind, flop = OpKind.MEMORY, 0
    matmul: MatmulShape | None = None
    attention: AttentionShape | None = None
    conv: ConvShape | None = None
    if "attention" in name and ("scaled_dot_product" in name or "flash" in name):
        kind = OpKind.ATTENTION
        attention, flop = _attention(name, args, kwargs)
    elif name in _CONV_NAMES:
        kind = OpKind.CONV
        conv = _conv(name, args)
        flop = _registered(func, args, kwargs, out)
        if name == "convolution_backward" and args[10][1]:
            flop = _of_groups(conv, flop)
        matmul = _conv_as_matmul(name, args, flop)
    elif name in _MATMUL_NAMES:
        kind = OpKind.MATMUL
        matmul, flop = _matmul(func, name, args, kwargs, out)
    elif name.startswith(SCAN) and (matmul := scan_products(args)) is not None:
        kind, flop = OpKind.MATMUL, scan_flop(args)
    elif func._overloadpacket in flop_registry:
        kind = OpKind.MATMUL
        flop = _registered(func, args, kwargs, out)
    elif _moves_nothing(func, name, inputs, outputs):
        kind = OpKind.VIEW
    read, written = (0, 0) if kind is OpKind.VIEW else _moved(name, inputs, outputs)
    return Op(
        name=name,
        kind=kind,
        phase=phase,
        module=module,
        dtype=dtype,
        work_flop=flop,
        read_bytes=read,
        written_bytes=written,
        matmul=matmul,
        attention=attention,
        conv=conv,
    )


def named_on_cpu(op: Op, args: tuple[Any, ...]) -> Op:
    """The op with the suffix ACROSS if it is a softmax over a dimension other than the last."""
    if op.name not in _SOFTMAXES:
        return op
    dim, rank = int(args[_SOFTMAXES[op.name]]), args[0].dim()
    return op if dim in (-1, rank - 1) else replace(op, name=op.name + ACROSS)


def moved_bytes_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    """Bytes that a memory-bound call reads and writes, as `describe_op` counts them."""
    return sum(_moved(_name(func), tensors_in((args, kwargs)), tensors_in(out)))


def _name(func: Any) -> str:
    return str(func._schema.name).removeprefix("aten::").replace("::", ".")


def _moved(name: str, inputs: list[Tensor], outputs: list[Tensor]) -> tuple[int, int]:
    """Bytes read and written; a gather reads as much of its table as it returns."""
    written = _distinct_bytes(outputs)
    if name not in _GATHERS:
        return _distinct_bytes(inputs), written
    return min(tensor_bytes(inputs[0]), written) + _distinct_bytes(inputs[1:]), written


def tensor_bytes(x: Tensor) -> int:
    """Bytes of a tensor, at most those of its storage (for expanded tensors)."""
    return min(x.numel() * x.element_size(), x.untyped_storage().nbytes())


def dtype_name(x: torch.dtype) -> str:
    """`bfloat16` of `torch.bfloat16`."""
    return str(x).removeprefix("torch.")


def _arithmetic_dtype(inputs: list[Tensor], outputs: list[Tensor]) -> str:
    for x in (*inputs, *outputs):
        if x.is_floating_point() or x.is_complex():
            return dtype_name(x.dtype)
    return dtype_name(inputs[0].dtype) if inputs else "float32"


def _distinct_bytes(tensors: list[Tensor]) -> int:
    seen: dict[tuple[int, int, int], int] = {}
    for x in tensors:
        key = (x.untyped_storage()._cdata, int(x.storage_offset()), x.numel())
        seen[key] = tensor_bytes(x)
    return sum(seen.values())


def _moves_nothing(func: Any, name: str, inputs: list[Tensor], outputs: list[Tensor]) -> bool:
    if getattr(func, "is_view", False) or name in _NO_WORK:
        return True
    if func._schema.is_mutable or not inputs:
        return False
    own = {x.untyped_storage()._cdata for x in inputs}
    return bool(outputs) and all(x.untyped_storage()._cdata in own for x in outputs)


def _registered(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    packet = func._overloadpacket
    if packet not in flop_registry:
        raise TraceError(f"no FLOP formula for {func}: it would be counted as 0 FLOPs")
    return int(flop_registry[packet](*args, **kwargs, out_val=out))


def _matmul(
    func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
) -> tuple[MatmulShape, int]:
    """Shape and FLOPs of a product; [m, k] x [k, n], `batch` of them."""
    if name in _FACTORS:
        batched, first = _FACTORS[name]
        shape = _product(args[first], args[first + 1], batched)
    elif name == "addr":
        shape = MatmulShape(batch=1, m=args[1].shape[0], n=args[2].shape[0], k=1)
    elif name == "linear":
        rows = math.prod(args[0].shape[:-1])
        shape = MatmulShape(batch=1, m=rows, n=args[1].shape[0], k=args[1].shape[1])
    elif name in ("_grouped_mm", "_scaled_grouped_mm"):
        return _grouped(args[0], args[1])
    elif name in RECURRENCES:
        return _recurrence(name, args)
    elif name == "_trilinear":
        return _trilinear(args)
    else:
        flop = _registered(func, args, kwargs, out)
        return MatmulShape(batch=1, m=1, n=1, k=max(1, flop // 2)), flop
    return shape, 2 * shape.batch * shape.m * shape.n * shape.k


def _recurrence(name: str, args: tuple[Any, ...]) -> tuple[MatmulShape, int]:
    """Shape and FLOPs of a recurrent layer: products with inputs and state at every position, each
    done twice in the backward."""
    first, passes = (1, 2) if name.endswith("backward") else (0, 1)
    x, w_in, w_state = args[first], args[first + 3], args[first + 4]
    shape = MatmulShape(
        batch=x.shape[0] * passes,
        m=x.shape[1],
        n=w_in.shape[0],
        k=w_in.shape[1] + w_state.shape[1],
    )
    return shape, 2 * shape.batch * shape.m * shape.n * shape.k


def _trilinear(args: tuple[Any, ...]) -> tuple[MatmulShape, int]:
    """Shape and FLOPs of nn.Bilinear's op, which loops over a dimension (at::native::_trilinear,
    torch 2.13). It computes two products: of factors 1 and 2, and of the result with factor 3.
    The returned shape is that of the product that sums over a dimension, otherwise of the larger
    one."""
    factors, expanded, summed = args[:3], args[3:6], set(args[6])
    along = args[7] if len(args) > 7 else 1
    sizes = []
    for factor, ones in zip(factors, expanded, strict=True):
        own = iter(factor.shape)
        sizes.append([1 if i in ones else next(own) for i in range(factor.dim() + len(ones))])
    count = max(size[along] for size in sizes)
    at_once = summed & set(expanded[2])
    first = _pair(sizes[0], sizes[1], at_once, along, count)
    between = [
        1 if i in at_once else max(s, t) for i, (s, t) in enumerate(zip(*sizes[:2], strict=True))
    ]
    second = _pair(between, sizes[2], summed - at_once, along, count)
    both = [(s.k > 1, 2 * s.batch * s.m * s.n * s.k, s) for s in (first, second)]
    return max(both, key=lambda one: one[:2])[2], sum(flop for _, flop, _ in both)


def _pair(
    a: Sequence[int], b: Sequence[int], summed: set[int], along: int, count: int
) -> MatmulShape:
    """Shape of the product of two factors with equally many dimensions, in a loop of `count`
    iterations over dimension `along`."""
    found = {"batch": count, "m": 1, "n": 1, "k": 1}
    for i, (s, t) in enumerate(zip(a, b, strict=True)):
        shared = s > 1 and t > 1
        if i == along or (i in summed and not shared):
            continue
        found["k" if i in summed else "batch" if shared else "m" if s > 1 else "n"] *= max(s, t)
    return MatmulShape(**found)


def _product(a: Tensor, b: Tensor, batched: bool = False) -> MatmulShape:
    """[batch, m, k] x [batch, k, n], or without a batch; a vector is one row or column."""
    batch = int(batched)
    return MatmulShape(
        batch=math.prod(a.shape[:batch]),
        m=math.prod(a.shape[batch:-1]),
        n=math.prod(b.shape[batch + 1 :]),
        k=a.shape[-1],
    )


def _grouped(a: Tensor, b: Tensor) -> tuple[MatmulShape, int]:
    """A grouped product with rows spread evenly over the experts (the expected shape of routing).

    [rows, k] x [experts, k, n] in the forward and for the inputs' gradient; [k, rows] x [rows, n]
    for the weights' gradient, with groups by offsets. Either way each row is multiplied once.
    """
    if a.dim() == 2 and b.dim() == 3:
        experts, rows = b.shape[0], a.shape[0]
        shape = MatmulShape(batch=experts, m=max(1, rows // experts), n=b.shape[2], k=a.shape[1])
        return shape, 2 * rows * b.shape[2] * a.shape[1]
    if a.dim() == 2 and b.dim() == 2:
        rows = a.shape[1]
        return MatmulShape(batch=1, m=a.shape[0], n=b.shape[1], k=rows), (
            2 * a.shape[0] * rows * b.shape[1]
        )
    shape = _product(a, b, True) if b.dim() == 3 else _product(a.flatten(0, 1), b)
    return shape, 2 * shape.batch * shape.m * shape.n * shape.k


def _of_groups(conv: ConvShape, flop: int) -> int:
    """FLOPs of a grouped convolution's backward, from torch's count, which multiplies all input
    channels with all output channels for the weight gradient (torch 2.13, conv_backward_flop of
    torch/utils/flop_counter.py) instead of those within a group."""
    input_gradient = int(conv.input_gradient)
    return flop * (input_gradient + 1) // (input_gradient + conv.groups)


def _conv_as_matmul(name: str, args: tuple[Any, ...], flop: int) -> MatmulShape:
    """The equivalent product of a convolution: output positions x output channels x patch."""
    offset = 1 if name == "convolution_backward" else 0
    weight = args[offset + 1]
    channels = max(1, int(weight.shape[0]))
    patch = max(1, math.prod(weight.shape[1:]))
    rows = max(1, round(flop / (2 * channels * patch)))
    return MatmulShape(batch=1, m=rows, n=channels, k=patch)


def _conv(name: str, args: tuple[Any, ...]) -> ConvShape:
    """The shape of a convolution from its arguments: (input, weight, bias, stride, padding,
    dilation, transposed, output_padding, groups). Those of a backward begin with the output's
    gradient, and have the bias's sizes in place of the bias."""
    first = 1 if name == "convolution_backward" else 0
    weight, stride = args[first + 1], args[first + 3]
    return ConvShape(
        groups=int(args[first + 8]),
        dims=weight.dim() - 2,
        taps=math.prod(weight.shape[2:]),
        stride=max((int(x) for x in stride), default=1),
        transposed=bool(args[first + 6]),
        input_gradient=not first or bool(args[10][0]),
        images=int(args[first].shape[0]),
        channels_last=_is_channels_last(args[first]) or _is_channels_last(weight),
    )


def _is_channels_last(x: Tensor) -> bool:
    """Whether an image is channels-last but not also contiguous."""
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return last and not x.is_contiguous()


def _attention(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[AttentionShape, int]:
    """Shape and FLOPs of a fused attention call.

    Forward: two products; backward: five, one of them the scores again (FlashAttention-2,
    arXiv 2307.08691, section 3.1.2 and appendix), so 2.5 times the forward. Causal: half.
    """
    backward = "backward" in name
    first = 1 if backward else 0
    q, k, v = args[first], args[first + 1], args[first + 2]
    causal = bool(kwargs.get("is_causal", _causal_flag(name, args, backward)))
    batch, heads, q_len, head_dim = q.shape
    kv_heads, kv_len = k.shape[1], k.shape[2]
    value_dim = v.shape[3]
    scores, values = head_dim, value_dim
    per_pair = 2 * (scores + values) if not backward else 2 * (3 * scores + 2 * values)
    pairs = batch * heads * q_len * kv_len
    flop = pairs * per_pair // 2 if causal else pairs * per_pair
    masked = name == "shardwright.flash_attention" and args[3] is not None
    shape = AttentionShape(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        q_len=q_len,
        kv_len=kv_len,
        head_dim=head_dim,
        causal=causal,
        mask_reach=0 if masked else None,
    )
    return shape, int(flop)


def _causal_flag(name: str, args: tuple[Any, ...], backward: bool) -> bool:
    flags = [x for x in args if isinstance(x, bool)]
    # In every aten and shardwright attention op, the causal flag is the last boolean, except that
    # return_debug_mask follows it in two forward variants.
    if not flags:
        return False
    debug = name in ("_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention")
    return flags[-2] if debug and not backward and len(flags) > 1 else flags[-1]
