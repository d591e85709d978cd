"""More small modules as factories: weights that are shared, frozen or used in ways of their own,
experts, and torch's own layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.executor.module_zoo import CLASSES, Made, Mlp, Residual, Stacked, factory, line

# --- weights --------------------------------------------------------------------------------------


class Tied(nn.Module):
    """One table for words and scores, one projection shared by all layers, frozen weights."""

    class Layer(nn.Module):
        def __init__(self, shared: nn.Linear) -> None:
            super().__init__()
            self.mlp, self.shared = Mlp(), shared

        def forward(self, x: Tensor) -> Tensor:
            return self.mlp(x) + torch.tanh(self.shared(x))

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(32, 12)
        shared = nn.Linear(12, 12)
        self.layers = nn.ModuleList(self.Layer(shared) for _ in range(4))
        self.scores = nn.Linear(12, 32, bias=False)
        self.scores.weight = self.words.weight
        self.layers[1].mlp.up.requires_grad_(False)
        self.register_buffer("scale", torch.ones(12) * 2)
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.words(tokens) * self.scale
        for layer in self.layers:
            h = layer(h)
        return self.scores(h) * self.temperature


def tied() -> Made:
    tokens = torch.arange(4 * 6).reshape(4, 6) % 32

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(output.flatten(0, 1), targets.flatten())

    return Tied(), (tokens,), tokens, loss


class Queried(Stacked):
    """Layers with learned queries: a product of two weights."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.queries, self.read = nn.Parameter(torch.rand(3, 12)), nn.Linear(12, 12)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x + self.read(self.queries).sum(0))


class Tempered(Stacked):
    """A single number is worked on before the layers and used behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        factor = self.temperature.exp()
        return super().forward(x) * factor


class Reread(nn.Module):
    """Code between layers reads a layer's weight: the nearest row of a table is looked up, and the
    table of words is the head, too."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.codes = nn.Embedding(32, 12), nn.Embedding(16, 12)
        self.layers = nn.ModuleList(Mlp() for _ in range(3))

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.words(tokens)
        for layer in self.layers:
            h = layer(h)
        nearest = torch.cdist(h, self.codes.weight).argmin(-1)
        h = h + self.codes(nearest)
        return functional.linear(h.mean(1), self.words.weight)


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient


class OwnFunction(Stacked):
    """A custom autograd function, its own checkpointing, functional dropout, statistics."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp, self.norm, self.dropout = Mlp(), nn.BatchNorm1d(12), 0.3

        def forward(self, x: Tensor) -> Tensor:
            h = checkpoint(self.mlp, x, use_reentrant=False)
            h = functional.dropout(self.norm(h), self.dropout, training=self.training)
            return Cubed.apply(h / 4)


class TwoPlayers(nn.Module):
    """A generator and a discriminator with a stopped gradient between them."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(6, 12), Mlp(), Mlp(), nn.Linear(12, 8))
        self.discriminator = nn.Sequential(nn.Linear(8, 12), Mlp(), Mlp(), nn.Linear(12, 1))

    def forward(self, noise: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        fake = self.generator(noise)
        return (
            self.discriminator(real),
            self.discriminator(fake.detach()),
            self.discriminator(fake),
        )


def two_players() -> Made:
    def loss(output: tuple[Tensor, ...], _: Any) -> Tensor:
        real, fake, fooled = output
        signs = functional.softplus(-real).mean() + functional.softplus(fake).mean()
        return signs + functional.softplus(-fooled).mean()

    return TwoPlayers(), (line(4, 6), line(4, 8) + 1), None, loss


class Student(nn.Module):
    """A teacher without gradient beside a student."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(6, 12), Mlp(), Mlp(), nn.Linear(12, 4))
        self.teacher = nn.Sequential(nn.Linear(6, 12), Mlp(), nn.Linear(12, 4))
        self.teacher.requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            wanted = self.teacher(x)
        return self.student(x), wanted


def student() -> Made:
    def loss(output: tuple[Tensor, Tensor], _: Any) -> Tensor:
        return (output[0] - output[1]).square().mean()

    return Student(), (line(4, 6),), None, loss


# --- routing --------------------------------------------------------------------------------------


class Experts(nn.Module):
    """A loop over experts with masks as indices, as many write it."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(12, 4, bias=False)
        self.experts = nn.ModuleList(Mlp() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = self.router(flat).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            mask = (chosen == number).any(-1)
            if mask.any():
                share = (weights * (chosen == number)).sum(-1, keepdim=True)
                out[mask] += share[mask] * expert(flat[mask])
        return x + out.view_as(x)


class SortedExperts(Experts):
    """Rows sorted by expert, split by how many each has."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        scores = self.router(flat).softmax(-1)
        chosen = scores.argmax(-1)
        order = chosen.argsort()
        sizes = torch.bincount(chosen, minlength=4).tolist()
        parts = flat[order].split(sizes)
        done = [f(part) for f, part in zip(self.experts, parts, strict=True) if len(part)]
        out = torch.empty_like(flat).index_copy(0, order, torch.cat(done))
        return x + (out * scores.gather(1, chosen[:, None])).view_as(x)


class Routed(Stacked):
    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(h.mean(1))


class DeepSupervision(nn.Module):
    """Scores after every layer, all of them in the loss; a skip drawn at random."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 12)
        self.layers = nn.ModuleList(Mlp() for _ in range(4))
        self.heads = nn.ModuleList(nn.Linear(12, 4) for _ in range(4))
        self.layer_drop = 0.5

    def forward(self, x: Tensor) -> list[Tensor]:
        h, found = self.stem(x), []
        for layer, head in zip(self.layers, self.heads, strict=True):
            if self.training and torch.rand([]) < self.layer_drop:
                continue
            h = layer(h)
            found.append(head(h))
        return found


def deep_supervision() -> Made:
    def loss(output: list[Tensor], targets: Tensor) -> Tensor:
        return torch.stack([functional.cross_entropy(x, targets) for x in output]).sum()

    return DeepSupervision(), (line(4, 6),), CLASSES, loss


# --- torch's own ----------------------------------------------------------------------------------


class Translate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(32, 16)
        self.transformer = nn.Transformer(
            16, 4, num_encoder_layers=2, num_decoder_layers=2, dim_feedforward=32, batch_first=True
        )
        self.head = nn.Linear(16, 32)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        out = self.transformer(self.words(source), self.words(target), tgt_mask=mask)
        return self.head(out)


def translate() -> Made:
    tokens = torch.arange(4 * 6).reshape(4, 6) % 32

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(output.flatten(0, 1), targets.flatten())

    return Translate(), (tokens, tokens.flip(1)), tokens, loss


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(32, 12)
        self.words = nn.Embedding(32, 12)
        self.lstm = nn.LSTM(12, 12, num_layers=2, batch_first=True, dropout=0.2)
        self.layers = nn.ModuleList(nn.GRU(12, 12, batch_first=True) for _ in range(3))
        self.head = nn.Linear(12, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        h, _ = self.lstm(self.words(tokens))
        for layer in self.layers:
            h = layer(h)[0]
        return self.head(h[:, -1] + self.bag(tokens))


class Compared(nn.Module):
    """One tower for both inputs, of which each layer is called twice, and one of its layers a third
    time."""

    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(32, 12)
            self.layers = nn.ModuleList(Mlp() for _ in range(3))
            self.out = nn.Linear(12, 4)

        def forward(self, tokens: Tensor) -> Tensor:
            h = self.words(tokens)
            for layer in (*self.layers, self.layers[1]):
                h = layer(h)
            return self.out(h.mean(1))

    def __init__(self) -> None:
        super().__init__()
        self.tower = self.Tower()

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return (self.tower(left) * self.tower(right)).sum(-1)


def compared() -> Made:
    tokens = torch.arange(4 * 6).reshape(4, 6) % 32
    return Compared(), (tokens, tokens.flip(1)), torch.rand(4), nn.BCEWithLogitsLoss()


class Spectral(nn.Module):
    """Fourier transforms with complex weights, parameters in lists."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 12), nn.Linear(12, 4)
        self.filters = nn.ParameterList(
            nn.Parameter(torch.ones(7, 12, dtype=torch.cfloat)) for _ in range(4)
        )
        self.layers = nn.ModuleList(Mlp() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for weights, layer in zip(self.filters, self.layers, strict=True):
            spectrum = torch.fft.rfft(h.float(), dim=-1)
            mixed = torch.einsum("bf,fg->bg", spectrum, weights.to(spectrum.dtype))
            h = layer(h + mixed.real)
        return self.head(h)


class Placed(nn.Module):
    """A constant in fp32 scales what goes between the layers, and is given to them."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = Mlp()

        def forward(self, x: Tensor, places: Tensor) -> Tensor:
            return x + self.mlp(x + places)

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(32, 12)
        self.layers = nn.ModuleList(self.Layer() for _ in range(3))
        self.scores = nn.Linear(12, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.linspace(0.0, 1.0, 12)
        h = self.words(tokens)
        for layer in self.layers:
            h = layer(h * (1 + places), places)
        return self.scores(h.mean(1) * places)


queried = factory(lambda: Queried(count=4))
tempered = factory(Tempered)
reread = factory(Reread, lambda: (torch.arange(4 * 6).reshape(4, 6) % 32,))
own_function = factory(lambda: OwnFunction(count=4))
# Spectral norms: buffers that are made from weights.
normed = factory(lambda: Residual(lambda: parametrizations.spectral_norm(nn.Linear(12, 12))))
routed = factory(lambda: Routed(Experts), lambda: (line(4, 8, 6),))
sorted_rows = factory(lambda: Routed(SortedExperts), lambda: (line(4, 8, 6),))
recurrent = factory(Recurrent, lambda: (torch.arange(4 * 6).reshape(4, 6) % 32,))
spectral = factory(Spectral)
placed = factory(Placed, lambda: (torch.arange(4 * 6).reshape(4, 6) % 32,))
