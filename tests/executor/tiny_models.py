"""Small modules that are no transformers, as factories."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.resnet50 import ResNet50
from examples.unet import UNet
from simulator.memory.held import GRADIENT_BUCKET_BYTES


class Residual(nn.Module):
    """A convolution with batch normalisation around which the input goes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.norm(self.conv(x)))


def cnn() -> tuple[nn.Module, tuple[Tensor, ...], Tensor, nn.Module]:
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        Residual(8),
        Residual(8),
        Residual(8),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 16)),
        nn.Linear(16, 5),
    )
    images = torch.linspace(-1, 1, 4 * 3 * 8 * 8).reshape(4, 3, 8, 8)
    return module, (images,), torch.tensor([0, 1, 2, 3]), nn.CrossEntropyLoss()


def one_wide_block() -> tuple[nn.Module, tuple[Tensor, ...], Tensor, nn.Module]:
    """Linear layers, of which the second alone has the weights of a bucket of gradients."""
    wide = GRADIENT_BUCKET_BYTES // 4 // 8
    module = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, wide), nn.Linear(wide, 1))
    return module, (torch.linspace(-1, 1, 24).reshape(4, 6),), torch.ones(4, 1), nn.MSELoss()


def crossing_ties() -> tuple[nn.Module, tuple[Tensor, ...], Tensor, nn.Module]:
    """Three layers; the first shares its bias with the third and its weight with the second."""
    first, second, third = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight, third.bias = first.weight, first.bias
    module = nn.Sequential(first, second, third)
    return module, (torch.linspace(-1, 1, 32).reshape(4, 8),), torch.ones(4, 8), nn.MSELoss()


class Greedy(nn.Module):
    """A linear layer that asks for more memory than any machine has, in its third call with real
    tensors: the second step, where a step has two micro-batches."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += type(x) is Tensor and x.device.type == "cpu"
        if self.calls == 3:
            torch.empty(1 << 50, dtype=torch.uint8)
        return self.layer(x)


def greedy_in_its_second_step() -> tuple[nn.Module, tuple[Tensor, ...], Tensor, nn.Module]:
    module = nn.Sequential(nn.Linear(6, 8), Greedy(), nn.Linear(8, 1))
    return module, (torch.linspace(-1, 1, 24).reshape(4, 6),), torch.ones(4, 1), nn.MSELoss()


def unet() -> tuple[nn.Module, tuple[Tensor, ...], Tensor, nn.Module]:
    """The example with a quarter of the channels, on images of a quarter of the pixels."""
    images = torch.linspace(-1, 1, 2 * 32 * 32).reshape(2, 1, 32, 32)
    return UNet(channels=8), (images,), (images[:, 0] > 0).long(), nn.CrossEntropyLoss()


def resnet50() -> tuple[nn.Module, tuple[Tensor, ...], Tensor, nn.Module]:
    """The example on images of a twelfth of the pixels."""
    images = torch.linspace(-1, 1, 2 * 3 * 64 * 64).reshape(2, 3, 64, 64)
    return ResNet50(), (images,), torch.tensor([0, 1]), nn.CrossEntropyLoss()


class Mixing(nn.Module):
    """A layer that is handed a second tensor, and may ignore it."""

    def __init__(self, size: int, *, uses_second: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(size, 2 * size), nn.ReLU(inplace=True))
        self.outer = nn.Linear(2 * size, size)
        self.scale = nn.Parameter(torch.full((size,), 0.5))
        self.uses_second = uses_second

    def forward(self, x: Tensor, second: Tensor) -> Tensor:
        x = x + self.scale * self.outer(self.inner(x))
        return x * second if self.uses_second else x


class IgnoredBranch(nn.Module):
    """Every layer gets the stem's second output, only the first uses it: no gradient comes back
    for it over the other cuts. One parameter is never used."""

    def __init__(self, size: int = 12) -> None:
        super().__init__()
        self.stem = nn.Linear(6, size)
        self.second = nn.Linear(6, size)
        self.layers = nn.ModuleList(Mixing(size, uses_second=i == 0) for i in range(5))
        self.head = nn.Linear(size, 4)
        self.unused = nn.Parameter(torch.ones(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        h, second = self.stem(x), torch.tanh(self.second(x))
        for layer in self.layers:
            h = layer(h, second)
        return self.head(h)


def ignored_branch() -> tuple[nn.Module, tuple[Tensor, ...], Tensor, nn.Module]:
    numbers = torch.linspace(-1, 1, 24).reshape(4, 6)
    return IgnoredBranch(), (numbers,), torch.tensor([0, 1, 2, 3]), nn.CrossEntropyLoss()


class Loose(nn.Module):
    """Weights that stand in no layer: added before the layers, given to each, a list of which one
    is read behind them, one that nothing reads, a frozen one; layers read one by themselves."""

    class Layer(nn.Module):
        def __init__(self, model: list[nn.Module]) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(12, 24), nn.Linear(24, 12)
            self.model = model  # a list: the model is no part of its layer

        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return x + self.down(torch.relu(self.up(x))) * scale + self.model[0].hidden

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 12), nn.Linear(12, 4)
        self.positions = nn.Parameter(torch.full((12,), 0.1))
        self.scale = nn.Parameter(torch.full((12,), 0.5))
        self.hidden = nn.Parameter(torch.zeros(12))
        self.shifts = nn.ParameterList(nn.Parameter(torch.zeros(12)) for _ in range(2))
        self.unread = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(12), requires_grad=False)
        self.layers = nn.ModuleList(self.Layer([self]) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x) + self.positions
        for layer in self.layers:
            h = layer(h, self.scale)
        return self.head((h + self.shifts[1]) * self.frozen)


def loose() -> tuple[nn.Module, tuple[Tensor, ...], Tensor, nn.Module]:
    numbers = torch.linspace(-1, 1, 24).reshape(4, 6)
    return Loose(), (numbers,), torch.tensor([0, 1, 2, 3]), nn.CrossEntropyLoss()


class AsksForType(nn.Module):
    """The body's own code asks its weights for their type and device, behind which the head is."""

    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            weight = next(p for p in self.parameters() if p.is_floating_point())
            x = x.to(weight.device, weight.dtype)
            for layer in self.layers:
                x = torch.tanh(layer(x))
            return x

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = self.Body(), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return] # nn.Module's


def asks_for_type() -> tuple[nn.Module, tuple[Tensor, ...], Tensor, nn.Module]:
    numbers = torch.linspace(-1, 1, 24).reshape(4, 6)
    return AsksForType(), (numbers,), torch.tensor([0, 1, 2, 3]), nn.CrossEntropyLoss()
