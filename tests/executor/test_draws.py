"""Seeds of draws: torch's own numbers, without what torch.manual_seed does beside them."""

from __future__ import annotations

import traceback
from typing import Never

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from executor.replay.draws import Draws, DrawsSeen


def _drawn(micro_batch: int) -> Tensor:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    draws = Draws(7)
    draws.watch(model, ("0", "1"))
    with draws.forward(micro_batch):
        return model[1](torch.ones(64, 64))  # type: ignore[no-any-return] # nn.Module's


def test_a_seed_notes_no_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.manual_seed formats the stack of every call where CUDA is not initialised, which took
    as long as half the forward of a small model."""

    def formatted(*args: object, **kwargs: object) -> Never:
        raise AssertionError("a stack was noted")

    monkeypatch.setattr(traceback, "format_stack", formatted)
    assert not torch.equal(_drawn(0), _drawn(1))


def test_attention_without_dropout_draws_nothing() -> None:
    """torch hands an op no argument that equals its default, so `dropout_p` of 0 is not seen: with
    draws watched where there are none, the forward of a small vision transformer took 60 % longer
    on two stages (torch 2.13, two cores, 2026-11-23)."""
    q = torch.ones(1, 2, 8, 16)
    for probability in (0.0, 0.5):
        with DrawsSeen() as seen:
            functional.scaled_dot_product_attention(q, q, q, dropout_p=probability)
        assert seen.any == (probability > 0)


def test_draws_follow_from_the_seed_and_leave_the_generator_as_it_was() -> None:
    torch.manual_seed(1)
    first, before = _drawn(0), torch.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(first, _drawn(0))
    # What the model's own weights drew is the same; the draws inside took nothing.
    torch.manual_seed(1)
    nn.Linear(4, 4)
    assert torch.equal(before, torch.get_rng_state())
