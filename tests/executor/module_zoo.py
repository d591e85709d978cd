"""Small torch modules written as people write them, as factories (FACTORIES).

None is a plain chain of equal layers: each has one habit that a tracer or a replay may trip over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = torch.tensor([0, 1, 2, 3])
Made = tuple[nn.Module, Any, Any, Any]


def line(*shape: int) -> Tensor:
    return torch.linspace(-1, 1, math.prod(shape)).reshape(shape)


class Mlp(nn.Module):
    def __init__(self, size: int = 12) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Stacked(nn.Module):
    """Layers between a stem and a head: `layer`, otherwise those of the subclass."""

    Layer: type[nn.Module] = Mlp

    def __init__(self, layer: Callable[[], nn.Module] | None = None, count: int = 3) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 12), nn.Linear(12, 4)
        self.layers = nn.ModuleList((layer or self.Layer)() for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for layer in self.layers:
            h = self.between(layer, h)
        return self.head(h)

    def between(self, layer: nn.Module, h: Tensor) -> Tensor:
        """A layer, and what is done around it."""
        return layer(h)


class Residual(Stacked):
    """Layers whose outputs are added to their inputs."""

    def between(self, layer: nn.Module, h: Tensor) -> Tensor:
        return h + layer(h).tanh()


def classified(module: nn.Module, inputs: Any = None) -> Made:
    return module, inputs if inputs is not None else (line(4, 6),), CLASSES, nn.CrossEntropyLoss()


def factory(
    make: Callable[[], nn.Module], inputs: Callable[[], Any] | None = None
) -> Callable[[], Made]:
    """A factory of the module with its inputs, four classes and their loss."""
    return lambda: classified(make(), None if inputs is None else inputs())


# --- what comes back, and what is given -----------------------------------------------------------


class Named(nn.Module):
    """Keyword-only inputs, a dictionary as output."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 12), nn.Linear(12, 4)
        self.blocks = nn.ModuleList(Mlp() for _ in range(4))

    def forward(self, *, features: Tensor, scale: Tensor | None = None) -> dict[str, Tensor]:
        h = self.stem(features)
        for block in self.blocks:
            h = block(h)
        if scale is not None:
            h = h * scale
        return {"logits": self.head(h), "hidden": h}


def named() -> Made:
    def loss(output: dict[str, Tensor], targets: Tensor) -> Tensor:
        return (
            functional.cross_entropy(output["logits"], targets) + output["hidden"].square().mean()
        )

    return Named(), {"features": line(4, 6), "scale": line(4, 1) + 2}, CLASSES, loss


@dataclass
class Answer:
    logits: Tensor
    parts: tuple[Tensor, ...]


class Dataclassed(nn.Module):
    """A dataclass as output, blocks that give tuples and take dictionaries."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = Mlp()

        def forward(self, state: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
            x = self.mlp(state["x"])
            return {"x": x, "sum": state["sum"] + x.mean(-1, keepdim=True)}, x

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 12), nn.Linear(13, 4)
        self.blocks = nn.ModuleList(self.Block() for _ in range(4))

    def forward(self, x: Tensor) -> Answer:
        h = self.stem(x)
        state, parts = {"x": h, "sum": h.new_zeros(h.shape[0], 1)}, []
        for block in self.blocks:
            state, part = block(state)
            parts.append(part)
        return Answer(self.head(torch.cat([state["x"], state["sum"]], -1)), tuple(parts))


def dataclassed() -> Made:
    def loss(output: Answer, targets: Tensor) -> Tensor:
        return functional.cross_entropy(output.logits, targets) + output.parts[0].square().mean()

    return Dataclassed(), (line(4, 6),), CLASSES, loss


def several_targets() -> Made:
    """Targets that are a dictionary of tensors."""
    module = nn.Sequential(nn.Linear(6, 12), Mlp(), Mlp(), Mlp(), nn.Linear(12, 5))

    def loss(output: Tensor, targets: dict[str, Tensor]) -> Tensor:
        first = functional.cross_entropy(output[:, :4], targets["kind"])
        return first + (output[:, 4] - targets["size"]).square().mean()

    return module, (line(4, 6),), {"kind": CLASSES, "size": line(4)}, loss


# --- how layers are called ------------------------------------------------------------------------


class Slices(nn.Module):
    """Slices of a list, layers by name, in reverse, and a condition on a shape."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 12)
        self.blocks = nn.ModuleList(Mlp() for _ in range(4))
        self.named = nn.ModuleDict({"first": Mlp(), "second": Mlp()})
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for block in self.blocks[:2]:
            h = block(h)
        for block in reversed(self.blocks[2:]):
            h = block(h)
        if h.shape[-1] > 8 and h.shape[0] >= 1:
            h = self.named["second"](h)
        return self.head(self.named["first"](h))


class Looped(nn.Module):
    """The same layers twice, and one layer many times."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 12), nn.Linear(12, 4)
        self.blocks = nn.ModuleList(Mlp() for _ in range(3))
        self.cell = nn.GRUCell(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        state = torch.zeros_like(h)
        for _ in range(2):
            for block in self.blocks:
                h = block(h)
                state = self.cell(h, state)
        return self.head(h + state)


class Dense(nn.Module):
    """Each layer takes what all before it made, as DenseNet's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6 + 4 * i, 4) for i in range(5))
        self.head = nn.Linear(26, 4)

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(torch.relu(layer(torch.cat(features, 1))))
        return self.head(torch.cat(features, 1))


class InPlace(nn.Module):
    """Changes its input in place, between blocks too."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 12), nn.Linear(12, 4)
        self.blocks = nn.ModuleList(Mlp() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
            h *= 0.5
            h += 1
        return self.head(h.relu_())


class Pooled(Stacked):
    """A tower whose pooled output nobody asks for, and whose output is taken through a view that is
    made behind the pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.ModuleList(Mlp() for _ in range(2))
        self.pool = Mlp()

    def forward(self, x: Tensor) -> Tensor:
        h = seen = self.stem(x)
        for layer in self.tower:
            seen = layer(seen)
        self.pool(seen)
        seen = seen.view(-1, 3, 4).view(-1, 12)
        for layer in self.layers:
            h = layer(h + seen)
        return self.head(h)


class Collected(nn.Module):
    """Features collected by hooks, layers told apart by their class."""

    class Timed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp, self.time = Mlp(), nn.Linear(3, 12)

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return self.mlp(x) + self.time(t)

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 12), nn.Linear(12, 4)
        self.time = nn.Linear(6, 3)
        self.blocks = nn.ModuleList([self.Timed(), Mlp(), self.Timed(), Mlp()])
        self.features: list[Tensor] = []
        for block in self.blocks:
            block.register_forward_hook(lambda module, args, out: self.features.append(out))

    def forward(self, x: Tensor) -> Tensor:
        self.features.clear()
        h, t = self.stem(x), self.time(x)
        for block in self.blocks:
            h = block(h, t) if isinstance(block, self.Timed) else block(h)
        return self.head(torch.stack(self.features).mean(0))


slices = factory(Slices)
looped = factory(Looped)
dense = factory(Dense)
in_place = factory(InPlace)
pooled = factory(Pooled)
collected = factory(Collected)
FACTORIES: dict[str, str] = {
    name: f"tests.executor.{zoo}:{name}"
    for zoo, names in {
        "module_zoo": (
            "named",
            "dataclassed",
            "several_targets",
            "slices",
            "looped",
            "dense",
            "in_place",
            "pooled",
            "collected",
        ),
        "gradient_zoo": (
            "penalised",
            "spectrum",
            "settling",
            "transformed",
            "orthogonal",
            "joined",
        ),
        "weight_zoo": (
            "tied",
            "tempered",
            "normed",
            "reread",
            "own_function",
            "two_players",
            "student",
            "routed",
            "sorted_rows",
            "deep_supervision",
            "translate",
            "recurrent",
            "spectral",
            "compared",
        ),
    }.items()
    for name in names
}
"""The path of each factory of this file and of weight_zoo.py."""
