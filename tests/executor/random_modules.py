"""Random modules: a recipe drawn by hypothesis, and the factory that its name leads to.

A recipe is a name, `tests.executor.random_modules:r_skip_list_mask_...__linear_lstm_sdpa`: what
fails is built again from what the test prints, in any process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from tests.executor.random_layers import KINDS, LENGTH, WIDTH, WORDS, Layer

JOINS = ("chain", "skip", "dense", "unet", "towers", "state", "pairs", "twice", "inplace")
HELD = ("list", "names", "sequence", "nested", "dict")
BESIDE = ("none", "index", "mask", "flags", "detached", "count", "places")
FROZEN = ("none", "first", "middle", "most", "teacher")
SHARED = ("none", "module", "weight", "table", "every")
OUTPUTS = ("tensor", "tuple", "dict", "list", "nested", "answer", "scalar")
LOSSES = ("entropy", "square", "own")
INPUTS = ("tuple", "named")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A module in words.

    join    how the layers are joined;  held  what holds them
    beside  what else goes from the first layer to the last (`index` and `places` are int64, `mask`
            and `flags` bool, `detached` and `count` without gradient)
    frozen  which layers are not trained;  shared  what several layers share
    output  what the module gives back;  loss  of it;  inputs  how it is given them
    """

    join: str
    held: str
    beside: str
    frozen: str
    shared: str
    output: str
    loss: str
    inputs: str
    layers: tuple[str, ...]

    @property
    def model(self) -> str:
        """The name of its factory."""
        words = [getattr(self, f.name) for f in fields(self) if f.name != "layers"]
        return f"{__name__}:r_{'_'.join(words)}__{'_'.join(self.layers)}"


def recipe_named(name: str) -> Recipe:
    """The recipe of a factory's name."""
    words, _, layers = name.removeprefix("r_").partition("__")
    return Recipe(*words.split("_"), layers=tuple(layers.split("_")))


def recipes() -> st.SearchStrategy[Recipe]:
    """All recipes of two to seven layers."""
    word = st.sampled_from
    return st.builds(
        Recipe,
        join=word(JOINS),
        held=word(HELD),
        beside=word(BESIDE),
        frozen=word(FROZEN),
        shared=word(SHARED),
        output=word(OUTPUTS),
        loss=word(LOSSES),
        inputs=word(INPUTS),
        layers=st.lists(word(sorted(KINDS)), min_size=2, max_size=7).map(tuple),
    )


class Answer(NamedTuple):
    """A named tuple as output."""

    logits: Tensor
    parts: list[Tensor]


class Stepped(nn.Module):
    """A layer as a member of nn.Sequential: one argument, one result."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, given: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.layer(*given), given[1]


class Random(nn.Module):
    """The module of a recipe."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.words = nn.Embedding(WORDS, WIDTH)
        self.stem = nn.Linear(WIDTH, WIDTH)
        made = [Layer(kind) for kind in recipe.layers]
        self._share(made)
        self._hold(made)
        self.head = nn.Linear(WIDTH, WORDS if recipe.shared == "table" else 4, bias=False)
        if recipe.shared == "table":
            self.head.weight = self.words.weight
        frozen = {"first": made[:1], "middle": made[1:2], "most": made[:-1]}.get(recipe.frozen, [])
        for layer in frozen:
            layer.requires_grad_(False)
        if recipe.frozen in ("first", "most"):
            self.stem.requires_grad_(False)
        if recipe.frozen == "teacher":
            self.teacher = Layer(recipe.layers[0]).requires_grad_(False)

    def _share(self, made: list[Layer]) -> None:
        if self.recipe.shared == "module":
            made[-1] = made[0]
        if self.recipe.shared == "every":
            made[:] = [made[0]] * len(made)
        if self.recipe.shared == "weight":
            first: dict[str, Layer] = {}
            for layer in made:
                own = first.setdefault(layer.kind, layer)
                for name, child in list(layer.named_children()):
                    other = getattr(own, name)
                    plain = not nn.utils.parametrize.is_parametrized(child)
                    if isinstance(child, nn.Linear) and plain:
                        child.weight = other.weight

    def _hold(self, made: list[Layer]) -> None:
        held = self.recipe.held
        if held == "list":
            self.layers = nn.ModuleList(made)
        elif held == "sequence":
            self.layers = nn.Sequential(*(Stepped(layer) for layer in made))
        elif held == "nested":
            half = (len(made) + 1) // 2
            self.layers = nn.ModuleList([nn.ModuleList(made[:half]), nn.ModuleList(made[half:])])
        elif held == "dict":
            self.layers = nn.ModuleDict({f"l{i}": layer for i, layer in enumerate(made)})
        else:
            for i, layer in enumerate(made):
                setattr(self, f"layer{i}", layer)

    def _calls(self) -> list[Callable[[Tensor, Tensor], Tensor]]:
        held = self.recipe.held
        if held == "list":
            return list(self.layers)
        if held == "sequence":
            return [lambda x, t, own=own: own((x, t))[0] for own in self.layers]
        if held == "nested":
            return [layer for part in self.layers for layer in part]
        if held == "dict":
            return list(self.layers.values())
        return [getattr(self, f"layer{i}") for i in range(len(self.recipe.layers))]

    def forward(self, features: Tensor, tokens: Tensor) -> Any:
        x = self.stem(features)
        wanted = None
        if self.recipe.frozen == "teacher":
            with torch.no_grad():
                wanted = self.teacher(features, tokens).mean((1, 2))
        calls = self._calls()
        x = calls[0](x, tokens)
        beside = self._beside(x)
        x, parts = self._joined(x, calls[1:], tokens, beside)
        x = self._used(x, beside)
        logits = self.head(x.mean(1)) * 50
        if self.recipe.shared == "table":
            logits = logits + self.words(tokens).mean((1, 2))[:, None]
        if wanted is not None:
            parts = [*parts, (logits.mean(-1) - wanted).square()]
        return self._given(logits, parts)

    def _beside(self, x: Tensor) -> Any:
        kind = self.recipe.beside
        if kind == "index":
            return x.mean(-1).argsort(dim=1)
        if kind == "mask":
            return x > 0
        if kind == "flags":
            return {"first": x.amax(-1, keepdim=True) > 1, "second": [x[:, :1].abs() < 1]}
        if kind == "detached":
            return x.detach().exp()
        if kind == "count":
            return (x > 0).sum(1)
        if kind == "places":
            return x.topk(2, dim=1)
        return None

    def _used(self, x: Tensor, beside: Any) -> Tensor:
        kind = self.recipe.beside
        if kind == "index":
            return x.gather(1, beside[..., None].expand_as(x)) * torch.linspace(0, 1, WIDTH)
        if kind == "mask":
            return x.masked_fill(beside, 0.5)
        if kind == "flags":
            return torch.where(beside["first"] & beside["second"][0], x, -x)
        if kind == "detached":
            return x * beside
        if kind == "count":
            return x * beside[:, None]
        if kind == "places":
            return x.scatter_add(1, beside.indices, beside.values)
        return x

    def _joined(
        self, x: Tensor, calls: list[Any], tokens: Tensor, beside: Any
    ) -> tuple[Tensor, list[Tensor]]:
        join, parts = self.recipe.join, []
        if join == "towers":
            other = self.words(tokens)
            for i, call in enumerate(calls):
                x, other = (x, call(other, tokens)) if i % 2 else (call(x, tokens), other)
            return x * 0.5 + other, [other.mean((1, 2))]
        if join == "unet":
            half, kept = len(calls) // 2, []
            for call in calls[:half]:
                kept.append(x)
                x = call(x, tokens)
            for call in calls[half:]:
                x = call(x, tokens)
                x = x + kept.pop() if kept else x
            return x, parts
        if join == "state":
            state = {"x": x, "sum": x.mean(1)}
            for call in calls:
                made = call(state["x"], tokens)
                state = {"x": made, "sum": state["sum"] + made.mean(1)}
            return state["x"] + state["sum"][:, None], parts
        if join == "dense":
            all_of = [x]
            for call in calls:
                all_of.append(call(torch.stack(all_of).mean(0), tokens))
            return torch.cat(all_of, -1).unflatten(-1, (-1, WIDTH)).amax(-2), parts
        for call in [*calls, *calls] if join == "twice" else calls:
            made = call(x, tokens)
            if join == "skip":
                made = x + made
            elif join == "inplace":
                made *= 0.5
                made += 1
            elif join == "pairs":
                parts.append(made[:, 0].mean(-1))
            x = made
        return x, parts

    def _given(self, logits: Tensor, parts: list[Tensor]) -> Any:
        output = self.recipe.output
        if output == "tensor":
            return logits + sum(part[:, None] for part in parts)
        if output == "tuple":
            return (logits, *parts)
        if output == "dict":
            return {"logits": logits, "parts": parts, "name": "random"}
        if output == "list":
            return [logits, *parts, None]
        if output == "nested":
            return {"all": [(logits, {"parts": tuple(parts)})], "places": logits.argmax(-1)}
        if output == "answer":
            return Answer(logits, parts)
        return logits.square().mean() + sum(part.mean() for part in parts)


def _loss(output: Any, targets: Any) -> Tensor:
    leaves = [x for x in torch.utils._pytree.tree_leaves(output) if isinstance(x, Tensor)]
    total = sum(x.square().mean() for x in leaves[1:] if x.is_floating_point())
    first = leaves[0]
    if targets is not None and first.dim():
        return total + functional.cross_entropy(first, targets)
    return total + first.square().mean()


def _made(recipe: Recipe) -> tuple[Any, ...]:
    batch = 4
    torch.manual_seed(1)
    line = torch.linspace(-2, 2, batch * LENGTH * WIDTH, device="cpu")
    features = (line * 37).sin().reshape(batch, LENGTH, WIDTH)
    tokens = torch.arange(batch * LENGTH, device="cpu").reshape(batch, LENGTH) * 7 % WORDS
    inputs: Any = (features, tokens)
    if recipe.inputs == "named":
        inputs = {"features": features, "tokens": tokens}
    module = Random(recipe)
    if recipe.loss == "own":
        return module, inputs
    targets = torch.arange(batch, device="cpu") if recipe.loss == "entropy" else None
    return module, inputs, targets, _loss


def __getattr__(name: str) -> Callable[[], tuple[Any, ...]]:
    if name.startswith("r_"):
        return lambda: _made(recipe_named(name))
    raise AttributeError(name)
