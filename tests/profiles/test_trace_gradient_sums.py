"""Gradients of a tensor that is used several times: added in place or not, as torch adds them."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from profiles.model.building.build_given import spec_of_module
from profiles.model.tracing.trace import trace_graph

BATCH, SIZE = 4, 16


class Shared(nn.Module):
    """A weight and an input that are used several times: each gradient is the layer's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


class Skip(nn.Module):
    """What the sum gives back is held by the branch until that has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        return x + torch.tanh(self.second(x))


class Kept(nn.Module):
    """The gradient of a sum reaches two sums: what one adds to, the other still needs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        a, b = torch.tanh(self.first(x)), torch.sigmoid(self.second(x))
        return (a + b) + a * 2 + b.exp()


@pytest.mark.parametrize("module", [Shared(), Skip(), Kept()], ids=lambda m: type(m).__name__)
def test_additions_of_gradients_are_those_that_torch_makes(module: nn.Module) -> None:
    x = torch.randn(BATCH, SIZE)
    spec = spec_of_module(module, x)
    graph = trace_graph(spec, micro_batch=BATCH, sequence_length=1, dtype="float32", target="cpu")
    blocks = [graph.kinds[ref.kind] for ref in graph.chain]
    traced = Counter(op.name for block in blocks for op in block.backward_ops)
    loss = module(x).square().mean()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        loss.backward()
    run = Counter(event.name for event in seen.events())
    assert traced["add_"] > 0
    assert (traced["add"], traced["add_"]) == (run["aten::add"], run["aten::add_"])
