"""The kernels of one call, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from profiles.model.graph import Op, Phase
from profiles.model.tracing.trace_fused import with_fused_attention
from profiles.model.tracing.trace_ops import describe_op


class Kernels(TorchDispatchMode):
    """Collects all kernels while it is active."""

    def __init__(self, phase: Phase, module: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's
        self.phase, self.module = phase, module
        self.ops: list[Op] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.namespace != "prim":
            self.ops.append(
                describe_op(func, args, kwargs, out, phase=self.phase, module=self.module)
            )
        return out


def run_call(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make a call; attention is one fused op, and grouped matmuls have equal groups."""
    if name in ("_grouped_mm", "grouped_mm") and args[0].dtype is not torch.bfloat16:
        return _equal_groups(args[0], args[1])
    return with_fused_attention(func, args, kwargs)


def _equal_groups(x: Tensor, weight: Tensor) -> Tensor:
    """A grouped matmul with equal groups; torch's own accepts only bfloat16 on meta tensors."""
    groups, rows = weight.shape[0], -(-x.shape[0] // weight.shape[0])
    padded = torch.nn.functional.pad(x, (0, 0, 0, groups * rows - x.shape[0]))
    made = torch.bmm(padded.reshape(groups, rows, -1), weight)
    return made.reshape(groups * rows, -1)[: x.shape[0]]


def backward_kernels(
    func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], module: str
) -> tuple[Op, ...]:
    """The kernels of this call's backward, recorded by repeating it on detached inputs."""
    copies: dict[int, Tensor] = {}

    def copy(x: Tensor) -> Tensor:
        if id(x) not in copies:
            copies[id(x)] = x.detach().requires_grad_(x.requires_grad)
        return copies[id(x)]

    with torch.enable_grad():
        out = run_call(func, name, *tree_map_only(Tensor, copy, (args, kwargs)))
    roots = [x for x in tree_leaves(out) if isinstance(x, Tensor) and x.grad_fn is not None]
    leaves = [x for x in copies.values() if x.requires_grad]
    if not roots or not leaves:
        return ()
    seeds = [torch.empty_like(x) for x in roots]
    recorder = Kernels(Phase.BACKWARD, module)
    with recorder:
        torch.autograd.grad(roots, leaves, seeds, allow_unused=True)
    return tuple(recorder.ops)
