"""Modules of sequences, as factories: recurrences, attention, transforms, scans."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.measuring.modules.made import Made, labels


class Tagger(nn.Module):
    """Two layers of GRU in both directions, a tag for every token."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5000, 128)
        self.gru = nn.GRU(128, 128, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(256, 17)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.gru(self.words(words))[0]).transpose(1, 2)


def tagger() -> Made:
    words = torch.arange(16 * 40).reshape(16, 40) % 5000
    return Tagger(), (words,), words % 17, nn.CrossEntropyLoss()


class Recurrent(nn.Module):
    """An LSTM language model whose head is its embedding."""

    def __init__(self, vocabulary: int = 4000, width: int = 192) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(words))[0]).transpose(1, 2)


def recurrent() -> Made:
    words = torch.arange(8 * 35).reshape(8, 35) * 7 % 4000
    return Recurrent(), (words,), words.roll(-1, 1), nn.CrossEntropyLoss()


def encoder() -> Made:
    """torch's own encoder layers, not causal."""
    layer = nn.TransformerEncoderLayer(192, 6, 768, dropout=0.0, batch_first=True)
    net = nn.Sequential(nn.Linear(32, 192), nn.TransformerEncoder(layer, 6), nn.Linear(192, 8))
    return net, (torch.randn(8, 64, 32),), torch.zeros(8, 64, 8), nn.SmoothL1Loss()


class Translator(nn.Module):
    """Encoder and decoder, and attention between them."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(3000, width), nn.Embedding(3000, width)
        self.net = nn.Transformer(width, 4, 3, 3, 512, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, 3000)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        read = self.net(self.source(source), self.target(target), tgt_mask=mask)
        return self.head(read).transpose(1, 2)


def translator() -> Made:
    source = torch.arange(8 * 48).reshape(8, 48) * 11 % 3000
    target = torch.arange(8 * 40).reshape(8, 40) * 13 % 3000
    return Translator(), (source, target), target.roll(-1, 1), nn.CrossEntropyLoss()


class Fourier(nn.Module):
    """Fourier transforms instead of attention (Lee-Thorp et al., arXiv 2105.03824)."""

    def __init__(self, width: int = 128, depth: int = 4) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(depth))
        self.head = nn.Linear(width, 12)

    def forward(self, x: Tensor) -> Tensor:
        for i, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            x = self.norms[2 * i](x + torch.fft.fft2(x).real)
            x = self.norms[2 * i + 1](x + down(functional.gelu(up(x))))
        return self.head(x.mean(dim=1))


def fourier() -> Made:
    return Fourier(), (torch.randn(8, 128, 128),), labels(8, 12), nn.CrossEntropyLoss()


class Scan(nn.Module):
    """A gated linear recurrence over time by cumulated sums."""

    def __init__(self, width: int = 160, depth: int = 4) -> None:
        super().__init__()
        self.mix = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for norm, mix, out in zip(self.norms, self.mix, self.out, strict=True):
            value, gate, decay = mix(norm(x)).chunk(3, dim=-1)
            fading = -functional.softplus(decay).cumsum(dim=1).clamp(max=20.0) / 50
            state = (value * torch.exp(-fading)).cumsum(dim=1) * torch.exp(fading)
            x = x + out(state * functional.silu(gate))
        return x


def scan() -> Made:
    x = torch.randn(4, 200, 160)
    return Scan(), (x,), x.flip(1), nn.MSELoss()
