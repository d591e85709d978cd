"""Small modules that take gradients themselves, as factories: in the forward, through layers that
`torch.func` transforms, and in the backward by hooks of their own; and complex or constrained
weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.executor.module_zoo import Mlp, Residual, Stacked, factory, line


class Penalised(Stacked):
    """The output is added to the norm of its gradient with respect to what the middle layers get
    (Gulrajani et al., arXiv 1704.00028, and forces of potentials)."""

    def forward(self, x: Tensor) -> Tensor:
        h = first = self.layers[0](self.stem(x))
        for layer in self.layers[1:]:
            h = layer(h)
        (force,) = torch.autograd.grad(h.square().sum(), first, create_graph=True)
        return self.head(h + force)


class Spectrum(nn.Module):
    """Complex weights beside others, on frequencies of the input that no weight has touched."""

    class Filter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            kernel = torch.complex(line(4, 4), line(4, 4).flip(0))
            self.kernel, self.scale = nn.Parameter(kernel), nn.Linear(4, 4)

        def forward(self, z: Tensor) -> Tensor:
            return torch.complex(self.scale(z.real), z.imag) @ self.kernel + z

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Filter() for _ in range(3))
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.fft.rfft(x)
        for layer in self.layers:
            z = layer(z)
        return self.head(z.abs())


class Settling(Stacked):
    """A layer whose backward is another's: a hook on its output takes gradients (Bai et al.,
    arXiv 1909.01377)."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(12, 12), nn.Linear(12, 12)

        def step(self, z: Tensor, x: Tensor) -> Tensor:
            return torch.tanh(self.inner(z) / 3 + self.outer(x))

        def forward(self, x: Tensor) -> Tensor:
            z = self.step(torch.zeros_like(x), x)
            start = z.detach().requires_grad_()
            end = self.step(start, x)

            def settled(gradient: Tensor) -> Tensor:
                (again,) = torch.autograd.grad(end, start, gradient, retain_graph=True)
                return again + gradient

            if z.requires_grad:
                z.register_hook(settled)
            return z


class Transformed(Stacked):
    """Descends a potential, whose layers torch.func differentiates."""

    def potential(self, h: Tensor) -> Tensor:
        for layer in self.layers:
            h = layer(h)
        return h.square().sum()

    def forward(self, x: Tensor) -> Tensor:
        h: Any = self.stem(x)
        return self.head(h - torch.func.grad(self.potential)(h))


class Averaged(Stacked):
    """Each layer is followed by one of moving averages of its weights, which the forward moves."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = nn.ModuleList(Mlp() for _ in range(3)).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        other = h.detach()
        for layer, slow in zip(self.layers, self.slow, strict=True):
            with torch.no_grad():
                for a, b in zip(layer.parameters(), slow.parameters(), strict=True):
                    b.lerp_(a, 0.1)
                other = slow(other)
            h = layer(h)
        return self.head(h - other)


class _Clamped(Mlp):
    """A layer that limits a weight of its own to a range narrower than where it starts."""

    def forward(self, x: Tensor) -> Tensor:
        self.up.weight.data.clamp_(-0.05, 0.05)
        return super().forward(x)


class Clipped(Stacked):
    """The model's code limits the weights of its layers (WGAN, Arjovsky et al., 1701.07875)."""

    def between(self, layer: Any, h: Tensor) -> Tensor:
        layer.down.weight.data.clamp_(min=-0.04)
        return layer(h)


class Joined(nn.Module):
    """Weights of equal members are stacked by the code between them, and run as one by vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 12), nn.Linear(12, 4)
        self.members = nn.ModuleList(nn.Linear(12, 12) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        weights = torch.stack([member.weight for member in self.members])
        return self.head(torch.vmap(lambda weight: torch.tanh(h @ weight))(weights).mean(0))


penalised = factory(Penalised)
spectrum = factory(Spectrum)
settling = factory(Settling)
transformed = factory(Transformed)
# Weights that are made orthogonal, which asks for their values where it begins.
orthogonal = factory(lambda: Residual(lambda: parametrizations.orthogonal(nn.Linear(12, 12))))
averaged = factory(Averaged)
clamped = factory(lambda: Stacked(_Clamped))
clipped = factory(Clipped)
joined = factory(Joined)
