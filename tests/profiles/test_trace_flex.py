"""Models with torch's flex attention, which has no backward on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from executor.replay.data_flow import flow_of
from profiles.errors import TraceError
from profiles.model.building.build import build_model
from profiles.model.loaders import resolve_model
from profiles.model.tracing.trace import trace_graph

LENGTH, WIDTH, WINDOW = 128, 32, 16
compiled_attention = torch.compile(flex_attention)


class Layer(nn.Module):
    def __init__(self, attention: Callable[..., Any]) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attention = attention

    def forward(self, x: Tensor, mask: Any) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (3, 2, -1)).movedim(-3, 0).transpose(2, 3)
        mixed = self.attention(*heads, block_mask=mask)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, window: int, attention: Callable[..., Any]) -> None:
        super().__init__()
        self.layers, self.window = nn.ModuleList(Layer(attention) for _ in range(2)), window

    def forward(self, x: Tensor) -> Tensor:
        def shown(sample: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (query >= key) & (query - key < self.window)

        mask = create_block_mask(shown, None, None, LENGTH, LENGTH, device=x.device)
        for layer in self.layers:
            x = layer(x, mask)
        return x


def causal() -> Any:
    return Model(LENGTH, compiled_attention), (torch.zeros(2, LENGTH, WIDTH),)


def windowed() -> Any:
    return Model(WINDOW, flex_attention), (torch.zeros(2, LENGTH, WIDTH),)


@pytest.mark.parametrize(("name", "reach"), [("causal", None), ("windowed", WINDOW)])
def test_an_accelerator_runs_one_kernel(name: str, reach: int | None) -> None:
    """It was refused on accelerators too: the trace runs on a CPU."""
    spec = resolve_model(f"{__name__}:{name}")
    graph = trace_graph(spec, micro_batch=2, sequence_length=LENGTH, dtype="float32")
    assert len(graph.chain) == 2
    for block in graph.blocks:
        (call,) = (op.attention for op in block.forward_ops if op.attention is not None)
        assert (call.heads, call.q_len, call.head_dim) == (2, LENGTH, WIDTH // 2)
        assert (call.causal, call.mask_reach) == (reach is None, reach)
    built = build_model(spec, micro_batch=2, sequence_length=LENGTH, device="cpu")
    assert flow_of(built, ("", "layers.1")).reached == {0, 1}


def test_a_cpu_is_refused_with_a_way_out() -> None:
    spec = resolve_model(f"{__name__}:causal")
    with pytest.raises(TraceError, match=r"backward on CPU.*--on .*scaled_dot_product"):
        trace_graph(spec, micro_batch=2, sequence_length=LENGTH, dtype="float32", target="cpu")
