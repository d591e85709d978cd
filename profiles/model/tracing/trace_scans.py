"""Recurrences of transformers' models, traced as one op each for accelerators.

Without the CUDA kernels of mamba-ssm or RWKV, transformers runs these recurrences in a Python loop
over the tokens: several ops per token and layer. On an accelerator one kernel reads the inputs once
and keeps the state on the chip (Mamba, arXiv 2312.00752, section 3.3.2).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from profiles.model.tracing.trace_fused import fake_op

# The backward runs the forward again, then both recurrences (arXiv 2312.00752, section 3.3.2).
_BACKWARD = 3
# FLOPs per element, state and token of the selective scan (arXiv 2312.00752, appendix D), and per
# element and token of RWKV's (counted in rwkv_linear_attention_cpu of transformers 5.23).
_SELECTIVE_FLOP, _RWKV_FLOP = 9, 24

_scan = fake_op(
    "scan",
    "(Tensor x, Tensor[] given, int flop) -> Tensor",
    lambda x, given, flop: torch.empty_like(x, memory_format=torch.contiguous_format),
)
_scan_backward = fake_op(
    "scan_backward",
    "(Tensor grad, Tensor out, Tensor x, Tensor[] given, int flop) -> Tensor[]",
    lambda grad, out, x, given, flop: [torch.empty_like(each) for each in (x, *given)],
)


def _save(ctx: Any, inputs: tuple[Tensor, list[Tensor], int], output: Tensor) -> None:
    x, given, ctx.flop = inputs
    ctx.save_for_backward(output, x, *given)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, list[Tensor], None]:
    out, x, *given = ctx.saved_tensors
    first, *others = _scan_backward(grad, out, x, given, _BACKWARD * ctx.flop)
    return first, others, None


torch.library.register_autograd("shardwright::scan", _gradients, setup_context=_save)


def scan_flop(args: Sequence[Any]) -> int:
    """FLOPs on vector units of a call of the scan or its backward."""
    return int(args[-1]) * int(args[0].numel())


def _tensors(*given: Any) -> list[Tensor]:
    return [x for x in given if isinstance(x, Tensor)]


def _selective(x: Tensor, step: Tensor, a: Tensor, *rest: Any, **named: Any) -> Any:
    out = _scan(x, _tensors(step, a, *rest, *named.values()), _SELECTIVE_FLOP * a.shape[-1])
    return (out, x.new_empty(*x.shape[:2], a.shape[-1])) if named.get("return_last_state") else out


def _rwkv(decay: Tensor, first: Tensor, key: Tensor, value: Tensor, **_: Any) -> Any:
    return _scan(key, [decay, first, value], _RWKV_FLOP), None


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "mamba_selective_scan": _selective,
    "rwkv_linear_attention": _rwkv,
}


@contextmanager
def fused_scans(module: nn.Module) -> Iterator[None]:
    """Within the context, the recurrences of transformers' models in `module` are one op each."""
    files = {type(child).__module__ for child in module.modules()}
    with ExitStack() as stack:
        for file in sorted(file for file in files if file.startswith("transformers.models.")):
            for name, function in _FUNCTIONS.items():
                if hasattr(sys.modules[file], name):
                    stack.enter_context(patch.object(sys.modules[file], name, function))
        yield
