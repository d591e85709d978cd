"""Cross entropy of split logits, against torch's of whole ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import Tensor, nn

from profiles.model.building.build_split_loss import split_cross_entropy


@pytest.mark.parametrize("ignored", [-100, 5])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_loss_and_gradients_are_those_of_whole_logits(ranks: int, ignored: int) -> None:
    torch.manual_seed(0)
    words = 24
    whole = (30 * torch.randn(7, words, dtype=torch.float64)).requires_grad_()
    targets = torch.randint(0, words, (7,))
    targets[2] = ignored
    expected = nn.functional.cross_entropy(whole, targets, ignore_index=ignored)
    (3 * expected).backward()

    barrier, held = Barrier(ranks), [torch.empty(0)] * ranks

    def on(rank: int) -> tuple[Tensor, Tensor]:
        def reduce(x: Tensor, operation: str) -> Tensor:
            held[rank] = x.clone()
            barrier.wait()
            both = torch.stack(held)
            x.copy_(both.sum(0) if operation == "sum" else both.amax(0))
            barrier.wait()
            return x

        first = rank * words // ranks
        share = whole.detach()[:, first : first + words // ranks].clone().requires_grad_()
        loss = split_cross_entropy(share, targets, first=first, reduce=reduce, ignored=ignored)
        (3 * loss).backward()
        assert share.grad is not None
        return loss.detach(), share.grad

    with ThreadPoolExecutor(ranks) as pool:
        found = list(pool.map(on, range(ranks)))
    for loss, _ in found:
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(
        torch.cat([gradient for _, gradient in found], -1), whole.grad, rtol=1e-10, atol=1e-14
    )
