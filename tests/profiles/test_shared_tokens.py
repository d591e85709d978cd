"""Which blocks run on shares of the tokens, and the reasons for those that do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from profiles.errors import InputError
from profiles.model.building.build import BuiltModel
from profiles.model.tracing.trace_derive_tensor_parallel import derive_rules
from profiles.model.tracing.trace_shared_tokens import SharedTokens, shared_tokens
from tests.executor.cases import LLAMA_ENTRIES, LLAMA_RULES, make_plan, write_models

WIDTH = 8


class Mlp(nn.Module):
    """Two layers, which tensor parallelism splits."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, features] as given."""
        y: Tensor = self.down(self.up(x).relu())
        return y


class Block(nn.Module):
    """A norm and the two layers; `change` is applied to the residual stream."""

    def __init__(self, change: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(WIDTH), Mlp()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, features] as given."""
        y: Tensor = self.mlp(self.norm(x))
        return self.change(x) + y


class Scaled(Block):
    """A block whose scale is computed from its weight, as Gemma's."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, features] as given."""
        y: Tensor = self.norm(x) * (1.0 + self.scale.float())
        z: Tensor = self.mlp(y + self.shift)
        return x + z


class Gated(Mlp):
    """Reads the number of tokens before it is split; its gate is whole on every rank."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, features] as given."""
        shape = x.shape[:-1]
        y: Tensor = self.down(self.up(x).view(*shape, -1).relu()) * self.gate(x)
        return y


class ReadsAll(Block):
    """A block with such a module."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = Gated()


class Alone(Block):
    """A block that calls the split layers itself, and reads the number of tokens before."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = self.mlp.up, self.mlp.down
        del self.mlp

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, features] as given."""
        shape = self.norm(x).shape
        y: Tensor = self.down(self.up(self.norm(x)).view(*shape[:-1], 4 * WIDTH))
        return x + y


class Model(nn.Module):
    """Words, blocks and a head."""

    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.words = nn.Embedding(12, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, tokens, words]."""
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


def found(block: Callable[[], nn.Module]) -> SharedTokens:
    def loss(logits: Tensor, tokens: Any) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())

    with torch.device("meta"):
        module, tokens = Model(block), torch.zeros(3, 4, dtype=torch.long)
    built = BuiltModel(
        module=module, args=(tokens,), targets=tokens, call=lambda m, x: m(x), loss_fn=loss
    )
    return shared_tokens(built, derive_rules(built))


def test_the_first_block_splits_tokens_and_the_last_one_joins_them() -> None:
    assert found(Block).rules == (
        ("blocks.0", "split_tokens 0"),
        ("blocks.2", "join_tokens 0"),
        ("blocks.*.mlp.up", "gather_tokens 0"),
        ("blocks.*.norm.bias", "sum_gradient"),
        ("blocks.*.norm.weight", "sum_gradient"),
    )


def test_a_weight_behind_other_functions_has_its_gradient_summed() -> None:
    rules = found(Scaled).rules
    assert {("blocks.*.scale", "sum_gradient"), ("blocks.*.shift", "sum_gradient")} <= {*rules}


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (lambda: Block(lambda x: x - x.mean(1, keepdim=True)), "`mean` of blocks.0 needs other"),
        (lambda: Block(lambda x: x.cumsum(1)), "`cumsum` of blocks.0 needs other tokens"),
        (lambda: Block(lambda x: F.dropout(x, 0.1)), "dropout of blocks.0 draws other numbers"),
        (lambda: Block(lambda x: x.flip(1)), "`flip` of blocks.0 needs other tokens"),
        (ReadsAll, "blocks.0.mlp.gate reads all tokens, and is not split"),
        (Alone, "blocks.0 fails on a share of its tokens"),
    ],
)
def test_blocks_that_need_all_tokens_are_refused(block: Callable[[], nn.Module], why: str) -> None:
    tokens = found(block)
    assert not tokens.rules
    assert why in tokens.why_not


def test_plans_state_what_their_rules_do(tmp_path: Any) -> None:
    llama, rules = write_models(tmp_path)["llama"], (("model.layers.0", "split_tokens 0"),)
    plan = make_plan(llama, LLAMA_ENTRIES, tp=2)
    values = {name: getattr(plan, name) for name in plan.__slots__}
    for change, why in (
        ({"sequence_parallel": True}, "has no rule for shares of the tokens"),
        ({"tensor_parallel": (*LLAMA_RULES, *rules)}, "use sequence_parallel=true"),
    ):
        with pytest.raises(InputError, match=why):
            type(plan)(**{**values, **change})
    alone = make_plan(llama, LLAMA_ENTRIES, dp=2)
    values = {name: getattr(alone, name) for name in alone.__slots__}
    with pytest.raises(InputError, match="tp=1 has no other rank"):
        type(alone)(**{**values, "sequence_parallel": True, "tensor_parallel": rules})
