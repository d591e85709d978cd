"""Blocks timed in place: which block gets which time, and that training stays what it is."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch import Tensor, nn

from profiles.errors import ModelError
from profiles.hardware.probe.probe_blocks import ChainSample, sample_chain


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(16, width)
        self.down = nn.Linear(width, 16)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return x + scale * self.down(torch.relu(self.up(x)))


class Chain(nn.Module):
    """Three layers of which the middle one does far more; the last one is called by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(16), Layer(4096), Layer(16)])

    def forward(self, x: Tensor) -> Tensor:
        first, middle, last = self.layers
        return last(x=middle(first(x), scale=0.5), scale=2.0)


ENTRIES = ("", "layers.1", "layers.2")


def chain_and_batch() -> tuple[Chain, Tensor]:
    torch.manual_seed(0)
    return Chain(), torch.randn(512, 16)


def taken(count: int, chain: nn.Module, batch: Tensor) -> list[ChainSample]:
    samples = sample_chain(lambda: chain(batch).square().mean(), chain, ENTRIES)
    try:
        return list(islice(samples, count))
    finally:
        samples.close()


def test_the_block_that_works_gets_the_time() -> None:
    torch.set_num_threads(1)
    samples = taken(20, *chain_and_batch())
    assert all(len(s.forward) == len(s.backward) == 3 for s in samples)
    # The middle block does 256 times the work of the others; CPU time, so load does not matter
    for block in (0, 2):
        for passed in ("forward", "backward"):
            middle = sorted(getattr(s, passed)[1].cpu_s for s in samples)[10]
            other = sorted(getattr(s, passed)[block].cpu_s for s in samples)[10]
            assert middle > 2 * other


def test_gradients_and_hooks_are_as_without_the_timing() -> None:
    chain, batch = chain_and_batch()
    chain(batch).square().mean().backward()
    expected = [p.grad.clone() for p in chain.parameters() if p.grad is not None]
    for parameter in chain.parameters():
        parameter.grad = None
    taken(2, chain, batch)
    for parameter, gradient in zip(chain.parameters(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, 2 * gradient)  # two micro-batches accumulate
    assert not any(module._forward_pre_hooks for module in chain.modules())


def test_frozen_first_blocks_have_no_backward() -> None:
    chain, batch = chain_and_batch()
    for parameter in (*chain.layers[0].parameters(), *chain.layers[1].parameters()):
        parameter.requires_grad_(False)
    for sample in taken(3, chain, batch):
        assert sample.backward[0].wall_s == sample.backward[1].wall_s == 0.0
        assert sample.backward[2].wall_s > 0.0


def test_an_entry_that_is_never_called() -> None:
    chain, batch = chain_and_batch()
    chain.spare = Layer(16)
    samples = sample_chain(lambda: chain(batch).mean(), chain, ("", "layers.1", "spare"))
    with pytest.raises(ModelError, match="never called 'spare', which opens block 2"):
        next(samples)


def test_an_entry_that_does_not_exist() -> None:
    chain, batch = chain_and_batch()
    with pytest.raises(ModelError, match=r"no module 'layers\.7'"):
        next(sample_chain(lambda: chain(batch).mean(), chain, ("", "layers.7")))
