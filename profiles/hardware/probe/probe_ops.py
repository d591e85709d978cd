"""The calls of a probe's cases: matmul, attention, layers, memory-bound ops, AdamW.

Tensors are as in training: a linear layer's weight is stored [n, k] and multiplied transposed,
every call allocates its output, and attention is torch's fused one. On a CPU the caches are as in a
step (`cycle`); on an accelerator they are as warm as repetition makes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiles.hardware.probe.probe_aten import aten_bytes, aten_call
from profiles.hardware.probe.probe_cases import MEMORY_OPS, ROW, Case, ConvCase, RecurrenceCase
from profiles.hardware.probe.probe_timing import TimedCall, cycle
from profiles.hardware.probe.recorded_calls import Call, recorded_call
from profiles.model.graph import AttentionShape, MatmulShape, Op, Phase
from profiles.model.tracing.trace_fused import FusedRecurrence
from profiles.model.tracing.trace_ops import describe_op

_META = torch.device("meta")
_BACKWARD = {Phase.FORWARD: "", Phase.BACKWARD: "_backward"}

# An AdamW step on a CPU moves at least this much, more than the caches (at most 96 MiB of L3 per
# chiplet: AMD EPYC 9684X, amd.com), or updates as many small parameters as a small model has: each
# has its share of the step's fixed time (32 parameters of 146 elements took 23 us each after a
# backward: 2-core virtual machine, torch 2.13, 2026-11-23).
_OPTIMIZER_BYTES = 128 * 2**20
_MOST_PARAMETERS = 32

# Positions of a measured sequence: a layer's time is proportional to them, and with this many the
# fixed time of a call is negligible.
_LENGTH = 32
_RECURRENCES = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


def op_call(case: Case, device: torch.device) -> TimedCall:
    """The timed call of a case on existing tensors."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    if isinstance(case.shape, AttentionShape):
        return TimedCall(_pass(*_attention(case.shape, case.phase, dtype, device), case.phase))
    if isinstance(case.shape, RecurrenceCase):
        return TimedCall(_pass(*_recurrence(case.shape, dtype, device), case.phase))
    if case.family == "launch":
        one = torch.ones(1, device=device)
        return TimedCall(lambda: one.add(one))
    if case.family == "bandwidth":
        here = torch.ones(case.size_bytes // 8, device=device)
        there = torch.ones_like(here)
        return TimedCall(lambda: there.copy_(here))
    if case.op == "adamw":
        return _adamw(case, device)
    func, args = _op(case, dtype, device)
    return cycle(func, args) if device.type == "cpu" else TimedCall(lambda: func(*args))


def traced_op(case: Case) -> Op:
    """A convolution or recurrent layer as the tracer records it."""
    func, args = _op(case, getattr(torch, case.dtype), _META)
    return describe_op(func, args, {}, func(*args), phase=case.phase, module="")


def work_flop(case: Case) -> float:
    """FLOPs of the forward; attention counts as not causal, memory-bound ops as 0."""
    shape = case.shape
    if isinstance(shape, MatmulShape):
        return 2.0 * shape.batch * shape.m * shape.n * shape.k
    if isinstance(shape, AttentionShape):
        return 4.0 * shape.batch * shape.heads * shape.q_len * shape.kv_len * shape.head_dim
    return 0.0 if shape is None else float(traced_op(case).work_flop)


def moved_bytes(case: Case) -> int:
    """Bytes moved by a memory-bound op: whole rows; an aten op's as the tracer counts them."""
    if case.family == "aten":
        return aten_bytes(case.op, case.num_elements, case.dtype)
    return MEMORY_OPS[case.op][1] * 4 * case.num_elements


def _op(case: Case, dtype: torch.dtype, device: torch.device) -> Call:
    if isinstance(case.shape, MatmulShape):
        return _matmul(case.shape, dtype, device)
    if isinstance(case.shape, ConvCase):
        forward = _convolution(case.shape, dtype, device)
        return recorded_call(f"convolution{_BACKWARD[case.phase]}", forward)
    if isinstance(case.shape, RecurrenceCase):
        forward, _ = _recurrence(case.shape, dtype, device)
        with FusedRecurrence():
            return recorded_call(f"{case.shape.kind}_layer{_BACKWARD[case.phase]}", forward)
    if case.family == "aten":
        return aten_call(case.op, case.num_elements, dtype, device)
    return _memory_op(case, device)


def _matmul(shape: MatmulShape, dtype: torch.dtype, device: torch.device) -> Call:
    if shape.batch > 1:
        a = torch.randn(shape.batch, shape.m, shape.k, device=device).to(dtype)
        b = torch.randn(shape.batch, shape.n, shape.k, device=device).to(dtype).transpose(1, 2)
        return torch.bmm, (a, b)
    left = torch.randn(shape.m, shape.k, device=device).to(dtype)
    right = torch.randn(shape.n, shape.k, device=device).to(dtype).t()
    return torch.mm, (left, right)


# A forward, and the tensors whose gradients its backward computes.
Layer = tuple[Callable[[], Tensor], tuple[Tensor, ...]]


def _attention(
    shape: AttentionShape, phase: Phase, dtype: torch.dtype, device: torch.device
) -> Layer:
    def tensor(heads: int, length: int) -> Tensor:
        size = (shape.batch, heads, length, shape.head_dim)
        return torch.randn(size, device=device).to(dtype).requires_grad_(phase is Phase.BACKWARD)

    q = tensor(shape.heads, shape.q_len)
    k, v = tensor(shape.kv_heads, shape.kv_len), tensor(shape.kv_heads, shape.kv_len)
    grouped = shape.heads != shape.kv_heads
    attention = F.scaled_dot_product_attention
    return lambda: attention(q, k, v, is_causal=shape.causal, enable_gqa=grouped), (q, k, v)


def _recurrence(shape: RecurrenceCase, dtype: torch.dtype, device: torch.device) -> Layer:
    """The call of a recurrent layer. The weights stay in the caches, as in a step for all positions
    but the first."""
    layer = _RECURRENCES[shape.kind](shape.inputs, shape.size, device=device, dtype=dtype)
    x = torch.randn(_LENGTH, shape.batch, shape.inputs, device=device).to(dtype).requires_grad_()
    return lambda: layer(x)[0], (x, *layer.parameters())


def _convolution(shape: ConvCase, dtype: torch.dtype, device: torch.device) -> Callable[[], Tensor]:
    def tensor(*sizes: int) -> Tensor:
        made = torch.randn(sizes, device=device).to(dtype)
        layout = torch.channels_last if shape.last and made.dim() == 4 else torch.contiguous_format
        return made.contiguous(memory_format=layout).requires_grad_()

    dims = shape.dims
    x = tensor(shape.batch, shape.inputs, *((shape.side,) * dims)).requires_grad_(not shape.first)
    inner = (shape.outputs, shape.inputs)[:: -1 if shape.transposed else 1]
    weight = tensor(inner[0], inner[1] // shape.groups, *((shape.window,) * dims))
    bias = tensor(shape.outputs)
    call = getattr(F, f"conv{'_transpose' if shape.transposed else ''}{dims}d")
    more = {"stride": shape.stride, "groups": shape.groups}
    more["padding"] = 0 if shape.transposed else shape.window // 2
    return lambda: call(x, weight, bias, **more)


def _pass(
    forward: Callable[[], Tensor], inputs: tuple[Tensor, ...], phase: Phase
) -> Callable[[], object]:
    """The function to time: the forward, or the backward alone of a forward that ran before."""
    if phase is Phase.FORWARD:
        return forward
    out = forward()
    gradient = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def _memory_op(case: Case, device: torch.device) -> Call:
    count = case.num_elements
    x = torch.randn(count, device=device)
    y = torch.randn(count, device=device) if MEMORY_OPS[case.op][1] == 3 else x
    rows = x.view(-1, min(ROW, count))
    if case.op == "embedding":
        return F.embedding, (torch.randperm(rows.shape[0], device=device), rows)
    calls: dict[str, Call] = {
        "add": (torch.add, (x, y)),
        "mul": (torch.mul, (x, y)),
        "gelu": (F.gelu, (x,)),
        "layer_norm": (F.layer_norm, (rows, rows.shape[1:])),
        "softmax": (torch.softmax, (rows, -1)),
        "clone": (torch.clone, (x,)),
    }
    return calls[case.op]


def _adamw(case: Case, device: torch.device) -> TimedCall:
    """One step of torch.optim.AdamW on equal fp32 parameters, fused as the executor runs it.

    On a CPU there are several parameters, and a small backward runs before each step, so that
    caches and interpreter are as in training.
    """
    wanted = math.ceil(_OPTIMIZER_BYTES / max(1, case.size_bytes))
    count = 1 if device.type == "cuda" else max(1, min(_MOST_PARAMETERS, wanted))
    parameters = []
    for _ in range(count):
        parameter = nn.Parameter(torch.randn(case.num_elements, device=device))
        parameter.grad = torch.randn_like(parameter)
        parameters.append(parameter)
    step = torch.optim.AdamW(parameters, lr=1e-6, fused=True).step
    if device.type == "cuda":
        return TimedCall(step)
    # A forward and backward of a small network, and a pass over more memory than the caches hold.
    layers = [(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU()) for _ in range(6)]
    network = nn.Sequential(*(part for layer in layers for part in layer))
    x, memory = torch.randn(64, 256), torch.zeros(16 * 2**20)

    def backward() -> None:
        network(x).sum().backward()
        memory.add_(1)

    return TimedCall(step, count, backward)
