"""Recurrences of transformers' models, traced as one op each for accelerators.

Without the CUDA kernels of mamba-ssm or RWKV, transformers runs these recurrences in a Python loop
over the tokens, several ops per token and layer, or writes scores of chunks of tokens to memory. On
an accelerator one kernel reads the inputs once and keeps the rest on the chip (Mamba, arXiv
2312.00752, section 3.3.2; Mamba-2, arXiv 2405.21060, section 6). A scan runs on vector units, that
of Mamba-2 as products of chunks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from profiles.model.graph import MatmulShape
from profiles.model.tracing.trace_fused import fake_op

# The backward of a scan runs the forward again, then both recurrences (arXiv 2312.00752, section
# 3.3.2); that of Mamba-2 has 8 products for 3 (state_work.py of the simulator).
_BACKWARD = 3
# FLOPs per element, state and token of the selective scan (arXiv 2312.00752, appendix D), and per
# element and token of RWKV's (counted in rwkv_linear_attention_cpu of transformers 5.23).
_SELECTIVE_FLOP, _RWKV_FLOP = 9, 24

_scan = fake_op(
    "scan",
    "(Tensor x, Tensor[] given, int flop, int chunk) -> Tensor",
    lambda x, given, flop, chunk: torch.empty_like(x, memory_format=torch.contiguous_format),
)
_scan_backward = fake_op(
    "scan_backward",
    "(Tensor grad, Tensor out, Tensor x, Tensor[] given, int flop, int chunk) -> Tensor[]",
    lambda grad, out, x, given, flop, chunk: [torch.empty_like(each) for each in (x, *given)],
)


def _save(ctx: Any, inputs: tuple[Tensor, list[Tensor], int, int], output: Tensor) -> None:
    x, given, ctx.flop, ctx.chunk = inputs
    ctx.save_for_backward(output, x, *given)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, list[Tensor], None, None]:
    out, x, *given = ctx.saved_tensors
    first, *others = _scan_backward(grad, out, x, given, _BACKWARD * ctx.flop, ctx.chunk)
    return first, others, None, None


torch.library.register_autograd("shardwright::scan", _gradients, setup_context=_save)


def scan_flop(args: Sequence[Any]) -> int:
    """FLOPs of a call of the scan or its backward."""
    return int(args[-2]) * int(args[0].numel())


def scan_products(args: Sequence[Any]) -> MatmulShape | None:
    """The products of a scan by chunks, as one batch of equal FLOPs; None on vector units."""
    chunk = int(args[-1])
    if not chunk:
        return None
    batch, length, heads, size = args[0].shape
    count = batch * heads * -(-length // chunk)
    return MatmulShape(batch=count, m=min(chunk, length), n=size, k=int(args[-2]) // 2)


def _tensors(*given: Any) -> list[Tensor]:
    return [x for x in given if isinstance(x, Tensor)]


def _selective(x: Tensor, step: Tensor, a: Tensor, *rest: Any, **named: Any) -> Any:
    out = _scan(x, _tensors(step, a, *rest, *named.values()), _SELECTIVE_FLOP * a.shape[-1], 0)
    return (out, x.new_empty(*x.shape[:2], a.shape[-1])) if named.get("return_last_state") else out


def _rwkv(decay: Tensor, first: Tensor, key: Tensor, value: Tensor, **_: Any) -> Any:
    return _scan(key, [decay, first, value], _RWKV_FLOP, 0), None


def _chunked(x: Tensor, step: Tensor, a: Tensor, b: Tensor, c: Tensor, **named: Any) -> Any:
    """Products of Mamba-2 per element: within a chunk, into and out of the states, and the scores
    of a group (arXiv 2405.21060, section 6)."""
    (heads, size), (groups, state) = x.shape[2:], b.shape[2:]
    chunk = min(named["chunk_size"], x.shape[1])
    summands = chunk + 2 * state + groups * state * chunk // (heads * size)
    out = _scan(x, _tensors(step, a, b, c, *named.values()), 2 * summands, chunk)
    final = named.get("return_final_states")
    return (out, x.new_empty(x.shape[0], heads, size, state)) if final else out


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "mamba_selective_scan": _selective,
    "mamba2_chunk_scan": _chunked,
    "rwkv_linear_attention": _rwkv,
}


def fused_scans(module: nn.Module) -> AbstractContextManager[None]:
    """Within the context, the recurrences of transformers' models in `module` are one op each."""
    return _replaced(module, {name: partial(_instead, op) for name, op in _FUNCTIONS.items()})


def short_chunks(module: nn.Module) -> AbstractContextManager[None]:
    """Within the context, a scan by chunks has no chunk longer than its sequence, which it would
    pad. The results are equal."""

    def short(
        scan: Callable[..., Any], x: Tensor, *given: Any, chunk_size: int, **named: Any
    ) -> Any:
        return scan(x, *given, chunk_size=min(chunk_size, x.shape[1]), **named)

    return _replaced(module, {"mamba2_chunk_scan": lambda scan: partial(short, scan)})


def _instead(op: Callable[..., Any], _: Callable[..., Any]) -> Callable[..., Any]:
    return op


@contextmanager
def _replaced(
    module: nn.Module, others: Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]]
) -> Iterator[None]:
    """Context with other functions in the source files of transformers' models in `module`.

    others  name -> the function in place of the original
    """
    files = {type(child).__module__ for child in module.modules()}
    with ExitStack() as stack:
        for file in sorted(file for file in files if file.startswith("transformers.models.")):
            for name, other in others.items():
                if original := getattr(sys.modules[file], name, None):
                    stack.callback(setattr, sys.modules[file], name, original)
                    setattr(sys.modules[file], name, other(original))
        yield
