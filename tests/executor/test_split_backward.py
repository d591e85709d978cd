"""A backward in two halves against torch's own, on one process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from executor.split_backward import SplitBackward
from executor.weight_products import target_of
from profiles.errors import RunError

# Sums in another order: a few roundings of fp32 (2^-24 each).
ROUNDING = 1e-5


class Everything(nn.Module):
    """Every kind of product that is split, weights used twice, in part, transposed and shared."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 6, padding_idx=1)
        self.lin = nn.Linear(6, 8)
        self.matrix = nn.Parameter(torch.randn(8, 6))
        self.packed = nn.Parameter(torch.randn(3, 6, 6))
        self.conv = nn.Conv1d(6, 6, 3, padding=1, groups=2)
        self.wider = nn.ConvTranspose1d(6, 6, 2, stride=2)
        self.image = nn.Conv2d(6, 6, (1, 3), stride=(1, 2), padding=(0, 1), bias=False)
        self.norm = nn.LayerNorm(6)
        self.bias = nn.Parameter(torch.zeros(6))
        self.square = nn.Parameter(torch.randn(6, 6))
        self.frozen = nn.Linear(6, 6).requires_grad_(False)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        h = self.lin(self.table(ids) + x).relu_() @ self.matrix
        for expert in range(2):
            h = h + torch.tanh(F.linear(h, self.packed[expert]))
        q, k, v = F.linear(h, self.packed.reshape(18, 6)).chunk(3, -1)
        h = self.frozen(h + q * k + v)
        h = self.wider(self.conv(h.transpose(1, 2)))
        h = self.image(h[:, :, None]).squeeze(2).transpose(1, 2)
        flat = torch.addmm(self.bias, self.norm(h).reshape(-1, 6), self.square)
        return F.linear(flat @ self.square.T, self.table.weight).logsumexp(-1).mean()


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randint(0, 10, (2, 4)), torch.randn(2, 4, 6, requires_grad=True)


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    return {name: p.grad for name, p in module.named_parameters()}


def assert_equal(found: dict[str, Tensor | None], wanted: dict[str, Tensor | None]) -> None:
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        if gradient is None:
            assert found[name] is None, name
        else:
            torch.testing.assert_close(found[name], gradient, rtol=ROUNDING, atol=ROUNDING)


def test_two_halves_are_the_whole_over_several_micro_batches() -> None:
    torch.manual_seed(0)
    module, split = Everything(), SplitBackward()
    batches = [inputs() for _ in range(3)]
    for ids, x in batches:
        module(ids, x).backward()
    wanted = {n: None if g is None else g.clone() for n, g in gradients(module).items()}
    wanted_x = [x.grad for _, x in batches]
    module.zero_grad()
    later = []
    for number, (ids, x) in enumerate(batches):
        x.grad = None
        with split.watching():
            loss = module(ids, x)
        if number == 1:  # a whole backward among the halves
            loss.backward()
            assert not split.waits
            continue
        with split.input_half():
            loss.backward()
        later.append(split.take())
        if number == 0:
            present = {n for n, g in gradients(module).items() if g is not None}
            assert present == {"norm.weight", "norm.bias"}
    for run in reversed(later):
        run()
    assert [x.grad is not None for _, x in batches] == [True] * 3
    for (_, x), want in zip(batches, wanted_x, strict=True):
        torch.testing.assert_close(x.grad, want)
    assert_equal(gradients(module), wanted)


def test_a_checkpointed_block_runs_again_once_and_sets_the_same_aside() -> None:
    torch.manual_seed(0)
    module, split = Everything(), SplitBackward()
    ids, x = inputs()
    module(ids, x).backward()
    wanted = gradients(module)
    module.zero_grad()
    calls = []
    module.norm.register_forward_hook(lambda *_: calls.append(1))
    with split.watching():
        loss = checkpoint(
            module,
            ids,
            x,
            use_reentrant=False,
            context_fn=lambda: (split.under_these_hooks(), split.watching()),
        )
    with split.input_half():
        loss.backward()
    assert sum(calls) == 2
    split.take()()
    assert sum(calls) == 2
    assert_equal(gradients(module), wanted)


def halves(module: nn.Module, x: Tensor) -> SplitBackward:
    """After an I."""
    split = SplitBackward()
    with split.watching():
        loss = module(x).square().sum()
    with split.input_half():
        loss.backward()
    return split


def test_what_changes_between_the_halves_is_refused() -> None:
    x = torch.ones(2, 3)
    split = halves(nn.Linear(3, 3), x)
    x.add_(1.0)
    with pytest.raises(RunError, match=r"shape \(3, 3\) was changed in place .* --schedule 1f1b"):
        split.take()()


def test_a_second_derivative_is_refused() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    module, split = nn.Linear(3, 3), SplitBackward()
    with split.watching():
        loss = module(x).square().sum()
    (dx,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


def left_alone(make: Callable[[], nn.Module]) -> None:
    """The module's weights have their gradients after I, and rightly."""
    torch.manual_seed(0)
    module = make()
    x = torch.randn(2, 3, 4)
    module(x).square().sum().backward()
    wanted = gradients(module)
    module.zero_grad()
    split = halves(module, x)
    assert not split.waits
    assert_equal(gradients(module), wanted)


class Hooked(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4, bias=False)
        self.weight.register_hook(lambda gradient: 2 * gradient)


class Attention(nn.Module):
    """Its weights go into a fused function."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


class FirstOfLSTM(nn.LSTM):
    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override] # one output
        return super().forward(x)[0]


class Expanded(nn.Module):
    """One row is shown many times: adding to the view would add to one place many times."""

    def __init__(self) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.randn(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.row.expand(5, 4))


class Summed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bsi,io->bso", x, self.weight) + F.linear(x, self.weight * 2)


@pytest.mark.parametrize(
    "make",
    [
        Hooked,
        Attention,
        Expanded,
        Summed,
        FirstOfLSTM,
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4, bias=False)),
    ],
    ids=["hook", "fused attention", "expanded", "no product", "LSTM", "parametrised"],
)
def test_weights_that_cannot_wait_are_done_in_the_first_half(
    make: Callable[[], nn.Module],
) -> None:
    left_alone(make)


def test_under_autocast_nothing_waits() -> None:
    module, split = nn.Linear(4, 4), SplitBackward()
    with split.watching(), torch.autocast("cpu", dtype=torch.bfloat16):
        loss = module(torch.ones(2, 4)).float().sum()
    with split.input_half():
        loss.backward()
    assert not split.waits
    assert module.weight.grad is not None


def test_an_activation_is_no_weight() -> None:
    x = torch.randn(3, 3, requires_grad=True)
    assert target_of(x) is None
    assert target_of(x.t()) is None
    p = nn.Parameter(torch.randn(4, 6))
    assert target_of(p.t()).part == ((6, 4), (1, 6), 0)
    assert target_of(p[1:3, 2:]).part == ((2, 4), (6, 1), 8)
    assert target_of(p.expand(2, 4, 6)) is None
    assert target_of(p.as_strided((4, 2), (1, 1))) is None
    assert target_of(p.detach()) is None


def test_between_the_halves_only_operands_are_kept() -> None:
    """x [64, 32] and dy [64, 16] of the product, and nothing of the 3 element-wise ops."""
    held = nn.Linear(32, 16, bias=False)
    module = nn.Sequential(nn.Tanh(), nn.Sigmoid(), held, nn.Tanh())
    x = torch.randn(64, 32, requires_grad=True)
    split = halves(module, x)
    (pending,) = split.waits
    assert pending.x.untyped_storage().nbytes() == 4 * 64 * 32
    assert pending.dy.untyped_storage().nbytes() == 4 * 64 * 16
    assert pending.x.grad_fn is None
    assert pending.dy.grad_fn is None
