"""Layers of recurrences of a probe: an LSTM, GRU or RNN layer, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from profiles.model.graph import Op, Phase
from profiles.model.tracing.trace_fused import LAYERS
from profiles.model.tracing.trace_ops import describe_op

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
