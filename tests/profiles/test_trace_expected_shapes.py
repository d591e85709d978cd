"""Expected shapes of routing, against real tensors whose rows are spread evenly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._pytree import tree_leaves

from profiles.model.fake_tensors.trace_expected_shapes import expected_shapes

_EXPERTS = 4


def _even_scores(rows: int) -> Tensor:
    """Scores whose best two are experts i and i + 1 of row i: each expert is chosen as often."""
    scores = torch.zeros(rows, _EXPERTS)
    for i in range(rows):
        scores[i, i % _EXPERTS], scores[i, (i + 1) % _EXPERTS] = 2.0, 1.0
    return scores


def _loop_over_hit_experts(scores: Tensor) -> list[Any]:
    chosen = scores.topk(2, dim=-1)[1]
    mask = torch.nn.functional.one_hot(chosen, num_classes=_EXPERTS + 1).permute(2, 1, 0)
    hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
    return [torch.where(mask[expert[0]]) for expert in hit]


def _masks_as_indices(scores: Tensor) -> list[Any]:
    chosen = scores.topk(2, dim=-1)[1]
    found = []
    for expert in range(_EXPERTS):
        mask = (chosen == expert).any(-1)
        if mask.any():
            found.append(scores[mask])
            found.append(scores[~mask])
            found.append(scores.masked_select(mask[:, None].expand_as(scores)))
    return found


def _split_by_counts(scores: Tensor) -> list[Any]:
    chosen = scores.argmax(-1)
    sizes = torch.bincount(chosen, minlength=_EXPERTS).tolist()
    return list(scores[chosen.argsort()].split(sizes))


def _group_limited(scores: Tensor) -> list[Any]:
    mask = torch.zeros_like(scores).scatter_(1, scores.topk(2, dim=-1)[1], 1)
    return [mask.bool().nonzero(), scores[mask.bool()]]


def _other_ops(scores: Tensor) -> list[Any]:
    chosen = scores.argmax(-1)
    rows = torch.histc(chosen.float(), bins=_EXPERTS, min=0, max=_EXPERTS - 1).long()
    each = torch.arange(_EXPERTS).repeat_interleave(rows)
    return [each, chosen.unique(), scores[: int(chosen.sort()[0].numpy().sum())]]


@pytest.mark.parametrize(
    "route",
    [_loop_over_hit_experts, _masks_as_indices, _split_by_counts, _group_limited, _other_ops],
)
def test_shapes_are_those_of_evenly_loaded_experts(route: Callable[[Tensor], list[Any]]) -> None:
    rows = 8 * _EXPERTS
    wanted = [tuple(x.shape) for x in tree_leaves(route(_even_scores(rows)))]
    used = []
    with FakeTensorMode(), expected_shapes(lambda: used.append(True)):
        found = [tuple(x.shape) for x in tree_leaves(route(torch.empty(rows, _EXPERTS)))]
    assert found == wanted
    assert used


def test_layers_are_dropped_as_their_probability_says() -> None:
    with FakeTensorMode(), expected_shapes():
        assert not torch.rand([]) < 0.0
        assert torch.rand([]) < 0.75


def test_values_of_which_nothing_is_expected_stay_an_error() -> None:
    with FakeTensorMode(), expected_shapes(), pytest.raises(DataDependentOutputException):
        bool(torch.empty(3).sum() > 0)


def test_masks_of_which_nothing_is_known_are_guessed_where_the_caller_says_so() -> None:
    with FakeTensorMode(), expected_shapes(unknown=True) as shapes:
        x, mask, rows = torch.empty(2, 8, 4), torch.empty(2, 8) > 0, torch.empty(6, 4)
        assert x[~mask].reshape(2, -1, 4).shape == (2, 4, 4)
        x[mask] = rows  # as many as are put there hold, from here on
        assert x[mask].shape == (6, 4)
        assert shapes.guessed
        assert not torch.empty(3).sum() > 5  # taken to be False, and told
        assert len(shapes.checks) == 1
        with pytest.raises(DataDependentOutputException):  # a loop that a value ends
            all(not torch.empty(3).sum() > 0 for _ in range(99))


def test_codes_with_other_conditions_are_taken_to_hold() -> None:
    """Room for a token at its expert; experts that are named by a number."""
    with FakeTensorMode(), expected_shapes():
        chosen = torch.empty(16, _EXPERTS).argmax(-1)
        codes = torch.nn.functional.one_hot(chosen, num_classes=_EXPERTS)
        codes = codes * (codes.cumsum(-2) <= 9)
        (first, *others) = torch.greater(codes.sum(0), 0).nonzero()
        assert len(others) == _EXPERTS - 1
        assert f"expert_{first[0]}" == "expert_0"
        assert torch.where(codes.T[first].squeeze(0))[0].shape == (16 // _EXPERTS,)


def test_grouped_products_in_fp32_have_the_shapes_of_real_ones() -> None:
    rows, offsets = torch.ones(8, 4), torch.tensor([3, 8], dtype=torch.int32)
    weights = torch.ones(2, 4, 8)
    real = torch._grouped_mm(rows, weights, offs=offsets)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, expected_shapes():
        shaped = torch._grouped_mm(
            fake.from_tensor(rows), fake.from_tensor(weights), offs=fake.from_tensor(offsets)
        )
    assert (shaped.shape, shaped.dtype) == (real.shape, real.dtype)


@pytest.mark.parametrize("shapes", [FakeTensorMode, lambda: torch.device("meta")])
def test_what_is_made_of_numbers_alone_has_its_values(shapes: Callable[[], Any]) -> None:
    told: list[bool] = []
    with shapes(), expected_shapes(on_choice=lambda: told.append(True)):
        mask = torch.arange(6) > 3
        mask[0] = True
        assert mask.any()
        assert not mask.all()
        assert torch.zeros(6)[mask].shape == (3,)
    assert not told


def test_constants_that_are_written_down_have_their_values() -> None:
    with FakeTensorMode(), expected_shapes():
        assert (torch.tensor([3.0, 4.0]) == 4).any()
        assert not (torch.tensor([3.0, 4.0]) == 4).all()


def test_nothing_is_assumed_to_be_out_of_the_ordinary() -> None:
    told: list[bool] = []
    with FakeTensorMode(), expected_shapes(on_choice=lambda: told.append(True), opposite=3):
        x = torch.empty(4)
        assert (x > 0).all()
        assert not (x == 7).any()
        assert not (~(x > 0).all()).item()
        assert (x == 7).any()  # the fourth
    assert told == [True] * 4
