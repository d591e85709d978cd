"""The ops of a probe, as calls that can be repeated: matmul, attention, memory-bound, AdamW.

Tensors are those of training: a linear layer's weight is stored [n, k] and multiplied transposed,
outputs are allocated anew by every call, and the attention is torch's fused one. On a CPU they find
the caches as in a step (`Cycle`); an accelerator's stay as warm as repetition makes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiles.hardware.probe.probe_aten import Call, aten_call
from profiles.hardware.probe.probe_cases import ROW, Case
from profiles.hardware.probe.probe_layers import conv_call, recurrence_call
from profiles.hardware.probe.probe_timing import Cycle, Prepared
from profiles.model.graph import AttentionShape, MatmulShape, Phase

# An AdamW step on a CPU moves at least so much, more than its caches hold (96 MiB of L3 per chiplet
# at most: AMD EPYC 9684X, amd.com), or updates as many small parameters as a small model has: each
# carries its share of what a step takes by itself (32 parameters of 146 elements took 23 us each
# after a backward: 2-core virtual machine, torch 2.13, 2026-11-23).
_OPTIMIZER_BYTES = 128 * 2**20
_MOST_PARAMETERS = 32


def op_call(case: Case, device: torch.device) -> Callable[[], object]:
    """The call that `case` times, with its tensors already made; it does `pieces_of` its case."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    if case.attention is not None:
        return _attention(case.attention, case.phase, dtype, device)
    if case.family == "launch":
        one = torch.ones(1, device=device)
        return lambda: one.add(one)
    if case.family == "bandwidth":
        here = torch.ones(case.size_bytes // 8, device=device)
        there = torch.ones_like(here)
        return lambda: there.copy_(here)
    if case.op == "adamw":
        return _adamw(case, device)
    if case.recurrence is not None:
        return recurrence_call(case.recurrence, case.phase, dtype)
    func, args = _op(case, dtype, device)
    if device.type == "cpu":
        return Cycle(func, args)
    return lambda: func(*args)


def pieces_of(call: Callable[[], object], case: Case) -> int:
    """Equal pieces of work that one call does; the case's time is that of one of them."""
    if isinstance(call, Cycle):
        return call.count
    return _parameters(case) if case.op == "adamw" and not torch.cuda.is_available() else 1


def _op(case: Case, dtype: torch.dtype, device: torch.device) -> Call:
    if case.matmul is not None:
        return _matmul(case.matmul, dtype, device)
    if case.conv is not None:
        return conv_call(case.conv, case.phase, dtype, device)
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


def _attention(
    shape: AttentionShape, phase: Phase, dtype: torch.dtype, device: torch.device
) -> Callable[[], object]:
    backward = phase is Phase.BACKWARD

    def tensor(heads: int, length: int) -> Tensor:
        size = (shape.batch, heads, length, shape.head_dim)
        return torch.randn(size, device=device).to(dtype).requires_grad_(backward)

    q = tensor(shape.heads, shape.q_len)
    k, v = tensor(shape.kv_heads, shape.kv_len), tensor(shape.kv_heads, shape.kv_len)
    grouped = shape.heads != shape.kv_heads

    def forward() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=shape.causal, enable_gqa=grouped)

    if not backward:
        return forward
    out = forward()
    gradient = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)


def _memory_op(case: Case, device: torch.device) -> Call:
    count = case.num_elements
    x = torch.randn(count, device=device)
    y = torch.randn(count, device=device) if case.num_tensors == 3 else x
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


def _adamw(case: Case, device: torch.device) -> Callable[[], object]:
    """One step of torch.optim.AdamW on equal fp32 parameters, in the variant that the executor
    runs: `fused` on a CPU, torch's default on CUDA, which is `foreach`.

    On a CPU there are as many parameters as lie in memory when a model's are updated
    (`_parameters`), and each step finds caches and interpreter as a backward leaves them.
    """
    parameters = []
    for _ in range(1 if device.type == "cuda" else _parameters(case)):
        parameter = torch.nn.Parameter(torch.randn(case.num_elements, device=device))
        parameter.grad = torch.randn_like(parameter)
        parameters.append(parameter)
    if device.type == "cuda":
        return torch.optim.AdamW(parameters, lr=1e-6).step
    return Prepared(torch.optim.AdamW(parameters, lr=1e-6, fused=True).step, _Backward())


class _Backward:
    """A forward and backward of a small network, and more memory than caches hold read through."""

    def __init__(self) -> None:
        layers = [(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU()) for _ in range(6)]
        self._network = nn.Sequential(*(part for layer in layers for part in layer))
        self._x = torch.randn(64, 256)
        self._memory = torch.zeros(16 * 2**20)

    def __call__(self) -> None:
        self._network(self._x).sum().backward()
        self._memory.add_(1)


def _parameters(case: Case) -> int:
    return max(1, min(_MOST_PARAMETERS, math.ceil(_OPTIMIZER_BYTES / max(1, case.size_bytes))))
