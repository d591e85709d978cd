"""The exchanges around split layers, on one rank of two whose other rank has the same numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from profiles.model.tracing.trace_split_layers import NoExchange, SplitLayers
from profiles.model.tracing.trace_tensor_parallel import Sharding

RULES = {"query": "column", "key": "column", "out": "row"}


class Twin(NoExchange):
    """Exchange with a rank that has the same numbers: a sum is twice the part."""

    def __init__(self) -> None:
        self.summed: list[int] = []

    def reduce(self, x: Tensor, operation: str) -> Tensor:
        self.summed.append(x.data_ptr())
        return x.mul_(2.0)


class Copies(TorchDispatchMode):
    """Counts copies of tensors, and notes the memory of products."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.products: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.count += func.overloadpacket in (torch.ops.aten.clone, torch.ops.aten.copy_)
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.add):
            self.products.add(made.data_ptr())
        return made


class Block(nn.Module):
    """Two layers that read one tensor, and one that joins them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.query, self.key, self.out = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        return x + self.out(F.gelu(self.query(normed)) * self.key(normed))


def test_sums_are_made_in_the_memory_of_the_products() -> None:
    torch.manual_seed(0)
    block, twin = Block(), Twin()
    x = torch.randn(2, 4, 8, requires_grad=True)
    SplitLayers(Sharding(tp=2, rules=RULES), twin, rank=0).hook(block)
    with Copies() as copies:
        block(x).sum().backward()
    assert len(twin.summed) == 2, "one sum of outputs, one of gradients"
    assert copies.count == 0
    assert set(twin.summed) <= copies.products


def test_sums_reach_outputs_and_gradients() -> None:
    """The output of the last layer counts twice, and so does the gradient of the first layers."""
    torch.manual_seed(0)
    block = Block()
    x = torch.randn(2, 4, 8, requires_grad=True)
    normed = block.norm(x).detach().requires_grad_()
    inner = F.gelu(block.query(normed)) * block.key(normed)
    wanted = x + 2.0 * block.out(inner)
    (of_normed,) = torch.autograd.grad(block.out(inner).sum(), normed)
    (of_x,) = torch.autograd.grad(block.norm(x), x, 2.0 * of_normed)
    SplitLayers(Sharding(tp=2, rules=RULES), Twin(), rank=0).hook(block)
    made = block(x)
    made.sum().backward()
    torch.testing.assert_close(made, wanted)
    torch.testing.assert_close(x.grad, of_x + 1.0)
