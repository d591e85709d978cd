"""What the gradient check computes in."""

import torch
from torch import nn

from executor.check import without_autocast


class Mixed(nn.Module):
    """A head in fp32 after layers under autocast, as hand-written training code has it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.types: list[torch.dtype] = []

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inner = self.inner(self.body(x))
        self.types.append(inner.dtype)
        return self.norm(inner.float())


def test_regions_under_autocast_are_checked_in_fp32() -> None:
    """Split in two, such a module had gradients 2e-3 apart, which is the rounding of bf16; the
    check then failed in fp64, in which the norm's weights are and its input is not."""
    torch.manual_seed(0)
    model, x = Mixed(), torch.randn(4, 8)
    with without_autocast():
        exact = model(x)
    rounded = model(x)
    assert model.types == [torch.float32, torch.bfloat16]
    assert torch.equal(exact, model.norm(model.body(model.body(x))))
    assert not torch.equal(exact, rounded)
