"""Models that run their layers under torch.utils.checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, noop_context_fn

from profiles.model.loaders import resolve_model
from profiles.model.tracing.trace_checkpoints import modes_in_checkpoints
from profiles.model.tracing.traced import trace_model

WIDTH, HEADS, LENGTH = 32, 4, 16


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        q, k, v = heads.movedim(2, 0).transpose(2, 3)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(attended.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, *, again: bool) -> None:
        super().__init__()
        self.layers, self.again = nn.ModuleList(Layer() for _ in range(2)), again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.again else layer(x)
        return x


def made(*, again: bool) -> tuple[nn.Module, tuple[torch.Tensor], Any, Any, int]:
    x = torch.randn(2, LENGTH, WIDTH)
    return Model(again=again), (x,), x, F.mse_loss, LENGTH


def plain() -> tuple[nn.Module, tuple[torch.Tensor], Any, Any, int]:
    return made(again=False)


def checkpointed() -> tuple[nn.Module, tuple[torch.Tensor], Any, Any, int]:
    return made(again=True)


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_attention_runs_again_in_the_backward(target: str) -> None:
    """Traced for GPUs, it failed: the second run saved other tensors than the first."""
    backward = {}
    for factory in (plain, checkpointed):
        spec = resolve_model(f"{__name__}:{factory.__name__}")
        traced = trace_model(spec, sequence_length=LENGTH, dtype="float32", target=target)
        blocks = traced.at(2).chain
        ops = [op for ref in blocks for op in traced.at(2).kinds[ref.kind].backward_ops]
        backward[factory] = sum(op.attention is not None for op in ops)
    # A layer's backward, and its forward again.
    assert backward == {plain: 2, checkpointed: 4}


def test_the_usual_contexts_are_restored() -> None:
    with modes_in_checkpoints(), pytest.raises(ZeroDivisionError):
        raise ZeroDivisionError
    x = torch.ones(2, requires_grad=True)
    checkpoint(torch.sin, x, use_reentrant=False).sum().backward()
    assert torch.utils.checkpoint.noop_context_fn is noop_context_fn
    assert torch.allclose(x.grad, torch.cos(x.detach()))
