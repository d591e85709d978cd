"""Models whose loss is decided by values, and models whose loss or gradient is not finite."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Made = tuple[nn.Module, Any, Any, Any]


class Stack(nn.Module):
    def __init__(self, out: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, out)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).tanh()
        return self.head(x)


def _input() -> Tensor:
    return torch.linspace(-1, 1, 4 * 12 * 8, device="cpu").mul(31).sin().reshape(4, 12, 8)


def alignments() -> Made:
    """CTC with labels of several lengths."""
    labels = torch.arange(4 * 5, device="cpu").reshape(4, 5) % 5 + 1
    lengths = torch.tensor([5, 4, 3, 5], device="cpu")

    def loss(output: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
        steps = torch.full((len(output),), output.shape[1])
        scores = output.log_softmax(-1).transpose(0, 1)
        return functional.ctc_loss(scores, targets[0], steps, targets[1])

    return Stack(), (_input(),), (labels, lengths), loss


def matches() -> Made:
    """Each wanted row with the output that is nearest, no output twice."""

    def pairs(cost: Any) -> tuple[list[int], list[int]]:
        rows: list[int] = []
        for column in range(cost.shape[1]):
            order = cost[:, column].argsort(kind="stable").tolist()
            rows.append(next(row for row in order if row not in rows))
        return rows, list(range(cost.shape[1]))

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        found = []
        for mine, wanted in zip(output, targets, strict=True):
            rows, columns = pairs(torch.cdist(mine, wanted).detach().cpu().numpy())
            found.append((mine[rows] - wanted[columns]).square().mean())
        return torch.stack(found).mean()

    return Stack(), (_input(),), _input()[:, :3, :6].clone(), loss


def masked() -> Made:
    """What is right and what is wrong, each by its own mask; nothing where it is not finite."""
    marks = torch.arange(4 * 12, device="cpu").reshape(4, 12) % 3

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        if not torch.isfinite(output).all():
            raise ValueError("not finite")
        right, wrong = output[targets == 1], output[targets != 1]
        return functional.softplus(-right).mean() + functional.softplus(wrong).mean()

    return Stack(), (_input(),), marks, loss


def weighted() -> Made:
    """Targets with constants of the loss beside what belongs to a sample."""
    targets = {
        "kind": torch.arange(4 * 12, device="cpu").reshape(4, 12) % 6,
        "weights": torch.linspace(1, 2, 6, device="cpu"),
        "scale": torch.tensor(3.0, device="cpu"),
    }

    def loss(output: Tensor, targets: dict[str, Tensor]) -> Tensor:
        chances = -output.log_softmax(-1) * targets["weights"]
        return chances.gather(-1, targets["kind"][..., None]).mean() * targets["scale"]

    return Stack(), (_input(),), targets, loss


BY_VALUE = ("alignments", "matches", "masked")


class Pruned(nn.Module):
    """Behind the second layer only the rows that were chosen go on."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(0, 1)
        for number, layer in enumerate(self.layers):
            if number == 2:
                x = x[x[:, :2].argmax(-1) == 1]
            x = x + layer(x).tanh()
        return self.head(x)


def pruned() -> Made:
    return Pruned(), (_input(),), None, lambda output, _: output.square().mean()


class Breaks(nn.Module):
    """Half of the numbers become nan, in the forward or in the backward alone."""

    def __init__(self, *, backward: bool) -> None:
        super().__init__()
        self.linear, self.backward = nn.Linear(8, 8), backward

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        # The square root's slope at 0 is infinite, and 0 times that is nan.
        return x + (y * 0).abs().sqrt() if self.backward else x + (y - y.mean()).log()


def _broken(*, backward: bool) -> Made:
    module = Stack()
    module.layers[2] = Breaks(backward=backward)
    return module, (_input(),), None, lambda output, _: output.square().mean()


def breaks_forward() -> Made:
    return _broken(backward=False)


def breaks_backward() -> Made:
    return _broken(backward=True)
