"""Which models have their vocabulary split over tensor-parallel ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from profiles.model.building.build import BuiltModel
from profiles.model.building.tensor_parallel_rules import HEAD, TABLE
from profiles.model.tracing.trace_tensor_parallel import shard
from profiles.model.tracing.trace_vocabulary import vocabulary_rules

WORDS = 12
SPLIT = (("words", TABLE), ("head", HEAD))


class Small(nn.Module):
    """An embedding, a layer and a head; `after` is applied to the logits."""

    def __init__(self, after: Callable[[Tensor], Tensor], *, tied: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8, padding_idx=3)
        self.layer = nn.Linear(8, 8)
        self.head = nn.Linear(8, WORDS)
        self.after = after
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, length, words]."""
        return self.after(self.head(self.layer(self.words(tokens))))


class ReadsTable(Small):
    """A model whose own code reads the whole table."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, length, words]."""
        logits: Tensor = self.head(self.layer(self.words(tokens) + self.table.mean()))
        return logits

    def __init__(self) -> None:
        super().__init__(_same)
        self.table = self.words.weight


class CallsHeadTwice(Small):
    """A model that computes with the logits of an earlier guess, of which a rank has a share."""

    def __init__(self) -> None:
        super().__init__(_same)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, length, words]."""
        hidden = self.layer(self.words(tokens))
        sure = self.head(hidden).softmax(-1).amax(-1, keepdim=True)
        logits: Tensor = self.head(hidden * sure)
        return logits


def _same(x: Tensor) -> Tensor:
    return x


def _next_word(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(
        logits[:, :-1].reshape(-1, logits.size(-1)).float(), tokens[:, 1:].flatten()
    )


def _built(module: Callable[[], nn.Module], loss: Callable[[Any, Any], Tensor]) -> BuiltModel:
    with torch.device("meta"):
        made, tokens = module(), torch.zeros(2, 4, dtype=torch.long)
    return BuiltModel(
        module=made, args=(tokens,), targets=tokens, call=lambda m, x: m(x), loss_fn=loss
    )


@pytest.mark.parametrize(
    "module",
    [
        lambda: Small(_same),
        lambda: Small(_same, tied=True),
        lambda: Small(lambda x: 30 * torch.tanh(x / 30)),
    ],
)
def test_embedding_and_head_of_plain_logits(module: Callable[[], nn.Module]) -> None:
    assert vocabulary_rules(_built(module, _next_word)) == SPLIT


def test_a_loss_that_ignores_a_class() -> None:
    def loss(logits: Tensor, tokens: Tensor) -> Tensor:
        return F.cross_entropy(logits.view(-1, logits.size(-1)), tokens.view(-1), ignore_index=-1)

    assert vocabulary_rules(_built(lambda: Small(_same), loss)) == SPLIT


@pytest.mark.parametrize(
    "module",
    [
        lambda: Small(lambda x: x.softmax(-1)),  # needs all logits of a token
        lambda: Small(lambda x: x.flip(-1)),  # a rank's logits would be another's
        lambda: Small(lambda x: x + torch.ones(WORDS, device=x.device)),
        ReadsTable,
        CallsHeadTwice,
    ],
)
def test_models_that_stay_whole(module: Callable[[], nn.Module]) -> None:
    assert vocabulary_rules(_built(module, _next_word)) == ()


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten(), label_smoothing=0.1),
        lambda x, y: F.cross_entropy(x.transpose(1, 2), y),
        lambda x, y: F.cross_entropy(x.flatten(0, 1).log_softmax(-1), y.flatten()),
        lambda x, y: F.cross_entropy(x.flatten(0, 1)[:, :6], y.flatten()),
        lambda x, y: x.square().mean(),
    ],
)
def test_losses_of_whole_logits(loss: Callable[[Any, Any], Tensor]) -> None:
    assert vocabulary_rules(_built(lambda: Small(_same), loss)) == ()


def test_a_rank_has_its_words_and_shared_weights_stay_shared() -> None:
    model = _built(lambda: Small(_same, tied=True), _next_word).module
    sharding = shard(model, SPLIT, 4)
    assert isinstance(model, Small)
    assert model.words.weight is model.head.weight
    assert model.words.weight.shape == (3, 8)
    assert model.head.bias.shape == (3,)
    assert (model.words.num_embeddings, model.words.padding_idx) == (3, None)
    assert sharding.padding == {"words": 3}
    assert sharding.splits == dict.fromkeys(("words.weight", "head.weight", "head.bias"), (0, (1,)))
    assert sharding.splits_logits


def test_words_that_tp_does_not_divide_stay_whole() -> None:
    model = _built(lambda: Small(_same), _next_word).module
    sharding = shard(model, SPLIT, 5)
    assert not sharding.splits
    assert not sharding.splits_logits
    assert model.get_parameter("head.weight").shape == (WORDS, 8)
