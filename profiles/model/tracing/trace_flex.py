"""torch's flex attention, traced as one op as an accelerator runs it.

On a CPU torch has no backward of it, and materializes the scores. A trace for an accelerator calls
the fused attention of trace_fused.py instead: causal if the mask is, otherwise with the mask as a
constant. Changes of the scores (`score_mod`) are inside the kernel and cost nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from profiles.model.fake_tensors.trace_known_values import on_real_tensors
from profiles.model.tracing.trace_fused import flash_attention

_FLEX = "torch.nn.attention.flex_attention"
_MOST_PAIRS = 1 << 28  # of a query and a key whose mask is computed


@contextmanager
def fused_flex_attention() -> Iterator[None]:
    """Within the context, flex attention is one fused op, with or without torch.compile.

    Names of torch 2.13: the function checks its inputs and calls `flex_attention_hop`.
    """
    flex: Any = sys.modules.get(_FLEX)  # only a model that uses it has imported it
    changed = {
        "_validate_device": lambda query, key, value: None,
        "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True,
        "flex_attention_hop": _attended,
    }
    before = {name: getattr(flex, name) for name in changed if hasattr(flex, name)}
    for name in before:
        setattr(flex, name, changed[name])
    try:
        # A compiled call would compile the functions of its mask.
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for name, original in before.items():
            setattr(flex, name, original)


def _attended(
    q: Tensor, k: Tensor, v: Tensor, score_mod: Any, mask: tuple[Any, ...], *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and for each query the log-sum-exp and the largest score. `mask` ends with its
    function of sample, head, query and key."""
    causal, shown = _mask(mask[-1], q.shape[2], k.shape[2])
    known = None if shown is None else torch.ops.aten.lift_fresh(shown)
    out, sums = flash_attention(q, k, v, known, causal)
    return out, sums, torch.empty_like(sums)


def _mask(of_places: Any, queries: int, keys: int) -> tuple[bool, Tensor | None]:
    """Whether the mask of the first sample and head is causal, otherwise that mask if it hides any
    key. One that reads tensors of the model, and of a very long sequence, counts as none."""
    if queries * keys > _MOST_PAIRS:
        return False, None
    with on_real_tensors():
        zero = torch.zeros((), dtype=torch.long)
        query, key = torch.arange(queries)[:, None], torch.arange(keys)
        try:
            shown = torch.broadcast_to(of_places(zero, zero, query, key), (queries, keys))
        except Exception:  # the model's tensors have no values
            return False, None
        causal = bool(torch.equal(shown, query >= key))
        return causal, None if causal or bool(shown.all()) else shown.contiguous()
