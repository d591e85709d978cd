"""Layers of some forty kinds of op, all from [batch, 16, 8] to the same, for random modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.executor.weight_zoo import Cubed

LENGTH, WIDTH, SIDE, WORDS = 16, 8, 4, 24


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of layer.

    run      (layer, x, tokens) -> what comes out, before it is scaled
    parts    name -> what makes the submodule, parameter or buffer (a plain tensor)
    """

    run: Callable[[Any, Tensor, Tensor], Tensor]
    parts: Mapping[str, Callable[[], Any]] = field(default_factory=dict)


class Layer(nn.Module):
    """One kind of op as a module. Its output has unit variance: what reaches the loss is of a size
    whatever the depth, so that a wrong gradient is seen."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        for name, make in KINDS[kind].parts.items():
            made = make()
            if isinstance(made, (nn.Module, nn.Parameter)):
                setattr(self, name, made)
            else:
                self.register_buffer(name, made)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        out = KINDS[self.kind].run(self, x, tokens)
        return functional.layer_norm(out, out.shape[1:])


def _weight(*shape: int) -> Callable[[], nn.Parameter]:
    return lambda: nn.Parameter(torch.ones(shape))


def _linear(k: int = WIDTH, n: int = WIDTH) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(k, n)


def _conv2d(channels: int = WIDTH, **settings: int) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(WIDTH, channels, 3, padding=1, **settings)


def _image(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(-1, WIDTH, SIDE, SIDE)


def _sequence(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2)


def _heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (2, -1)).transpose(1, 2)


def _sdpa(layer: Any, x: Tensor, tokens: Tensor) -> Tensor:
    q, k, v = (_heads(part) for part in layer.qkv(x).chunk(3, -1))
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return x + layer.out(out.transpose(1, 2).flatten(2))


def _unfused(layer: Any, x: Tensor, tokens: Tensor) -> Tensor:
    q, k, v = (_heads(part) for part in layer.qkv(x).chunk(3, -1))
    scores = q @ k.transpose(-1, -2) / 2
    pad = (tokens == 0)[:, None, None, :]
    scores = scores.masked_fill(pad, -1e4)
    return x + layer.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def _multihead(layer: Any, x: Tensor, tokens: Tensor) -> Tensor:
    return x + layer.attention(x, x, x, need_weights=False)[0]


def _routed(layer: Any, x: Tensor, tokens: Tensor) -> Tensor:
    weight, chosen = layer.router(x).softmax(-1).topk(1, dim=-1)
    out = torch.zeros_like(x)
    for number, expert in enumerate((layer.one, layer.two)):
        out = out + expert(x) * (weight * (chosen == number))
    return x + out


def _topk_mask(layer: Any, x: Tensor, tokens: Tensor) -> Tensor:
    y = layer.linear(x)
    _, places = y.topk(3, dim=-1)
    mask = torch.zeros_like(y, dtype=torch.bool).scatter(-1, places, True)
    return x + torch.where(mask, y, torch.zeros((), dtype=y.dtype))


def _written(layer: Any, x: Tensor, tokens: Tensor) -> Tensor:
    y = layer.linear(x)
    y[:, ::2] = y[:, 1::2] * 2
    y.add_(1).mul_(0.5)
    return torch.relu_(y) + x


def _counted(layer: Any, x: Tensor, tokens: Tensor) -> Tensor:
    """A buffer that counts its calls and is read by none."""
    layer.calls += 1
    return x * layer.gain


def _averaged(layer: Any, x: Tensor, tokens: Tensor) -> Tensor:
    """A buffer that follows its input and is read by the next call."""
    y = layer.linear(x) - layer.mean
    with torch.no_grad():
        layer.mean.lerp_(x.mean((0, 1)), 0.1)
    return y


def _scattered(layer: Any, x: Tensor, tokens: Tensor) -> Tensor:
    place = (tokens % LENGTH)[..., None].expand_as(x)
    return torch.zeros_like(x).scatter_add(1, place, layer.linear(x)) + x


def _gathered(layer: Any, x: Tensor, tokens: Tensor) -> Tensor:
    place = layer.score(x).squeeze(-1).argsort(dim=1)
    return x.gather(1, place[..., None].expand_as(x)) * layer.gain


def _glued(layer: Any, x: Tensor, tokens: Tensor) -> Tensor:
    a, b = layer.wide(x).chunk(2, -1)
    first, second = torch.cat([a * b.sigmoid(), x], 1).split(LENGTH, dim=1)
    return first + second


def _framed(layer: Any, x: Tensor, tokens: Tensor) -> Tensor:
    padded = functional.pad(layer.linear(x), (0, 0, 1, 1))
    return padded.unfold(1, 3, 1).mean(-1) + x.flip(1).roll(1, 1)


def _spectrum(layer: Any, x: Tensor, tokens: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(x, dim=1) * layer.filter[None]
    return torch.fft.irfft(spectrum, n=LENGTH, dim=1) + x


def _noisy(layer: Any, x: Tensor, tokens: Tensor) -> Tensor:
    return layer.linear(functional.dropout(x, 0.1))


def _interpolated(layer: Any, x: Tensor, tokens: Tensor) -> Tensor:
    small = functional.max_pool2d(layer.conv(_image(x)), 2)
    return _sequence(functional.interpolate(small, scale_factor=2, mode="bilinear")) + x


KINDS: dict[str, Kind] = {
    "linear": Kind(lambda s, x, t: functional.gelu(s.linear(x)), {"linear": _linear()}),
    "mlp": Kind(
        lambda s, x, t: x + s.down(torch.relu(s.up(x))),
        {"up": _linear(WIDTH, 24), "down": _linear(24, WIDTH)},
    ),
    "bilinear": Kind(
        lambda s, x, t: s.pair(x, x.tanh()), {"pair": lambda: nn.Bilinear(WIDTH, WIDTH, WIDTH)}
    ),
    "conv1d": Kind(
        lambda s, x, t: s.conv(x.transpose(1, 2)).transpose(1, 2),
        {"conv": lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding=1)},
    ),
    "conv2d": Kind(lambda s, x, t: _sequence(s.conv(_image(x))), {"conv": _conv2d()}),
    "depthwise": Kind(
        lambda s, x, t: _sequence(s.point(s.deep(_image(x)))),
        {"deep": _conv2d(groups=WIDTH), "point": lambda: nn.Conv2d(WIDTH, WIDTH, 1)},
    ),
    "transposed": Kind(
        lambda s, x, t: _sequence(functional.avg_pool2d(s.conv(_image(x)), 2)),
        {"conv": lambda: nn.ConvTranspose2d(WIDTH, WIDTH, 2, stride=2)},
    ),
    "conv3d": Kind(
        lambda s, x, t: s.conv(x.view(-1, 1, 4, 4, WIDTH)).view_as(x),
        {"conv": lambda: nn.Conv3d(1, 1, 3, padding=1)},
    ),
    "batchnorm": Kind(
        lambda s, x, t: s.norm(s.linear(x).transpose(1, 2)).transpose(1, 2),
        {"linear": lambda: nn.Linear(WIDTH, WIDTH, bias=False), "norm": lambda: nn.BatchNorm1d(8)},
    ),
    "batchnorm2d": Kind(
        lambda s, x, t: torch.relu(_sequence(s.norm(s.conv(_image(x))))) + x,
        {"conv": _conv2d(), "norm": lambda: nn.BatchNorm2d(WIDTH)},
    ),
    "layernorm": Kind(lambda s, x, t: s.norm(x).square(), {"norm": lambda: nn.LayerNorm(WIDTH)}),
    "groupnorm": Kind(
        lambda s, x, t: s.norm(x.transpose(1, 2)).transpose(1, 2).exp(),
        {"norm": lambda: nn.GroupNorm(2, WIDTH)},
    ),
    "rmsnorm": Kind(lambda s, x, t: s.norm(x).tanh(), {"norm": lambda: nn.RMSNorm(WIDTH)}),
    "weightnorm": Kind(
        lambda s, x, t: s.linear(x).tanh(),
        {"linear": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))},
    ),
    "embedding": Kind(
        lambda s, x, t: x + s.table(t) * 30, {"table": lambda: nn.Embedding(WORDS, WIDTH)}
    ),
    "padded": Kind(
        lambda s, x, t: x + s.table(t) * 30,
        {"table": lambda: nn.Embedding(WORDS, WIDTH, padding_idx=0)},
    ),
    "bag": Kind(
        lambda s, x, t: x + s.bag(t)[:, None] * 30, {"bag": lambda: nn.EmbeddingBag(WORDS, WIDTH)}
    ),
    "lstm": Kind(
        lambda s, x, t: s.cell(x)[0], {"cell": lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True)}
    ),
    "gru": Kind(
        lambda s, x, t: s.cell(x)[0] + x,
        {"cell": lambda: nn.GRU(WIDTH, 4, batch_first=True, bidirectional=True)},
    ),
    "sdpa": Kind(_sdpa, {"qkv": _linear(WIDTH, 24), "out": _linear()}),
    "unfused": Kind(_unfused, {"qkv": _linear(WIDTH, 24), "out": _linear()}),
    "multihead": Kind(
        _multihead, {"attention": lambda: nn.MultiheadAttention(WIDTH, 2, batch_first=True)}
    ),
    "pooled": Kind(
        lambda s, x, t: x * s.linear(x.amax(1)).sigmoid()[:, None], {"linear": _linear()}
    ),
    "interpolate": Kind(_interpolated, {"conv": _conv2d()}),
    "scatter": Kind(_scattered, {"linear": _linear()}),
    "gather": Kind(_gathered, {"score": lambda: nn.Linear(WIDTH, 1), "gain": _weight(WIDTH)}),
    "glu": Kind(_glued, {"wide": _linear(WIDTH, 16)}),
    "select": Kind(
        lambda s, x, t: s.linear(x.index_select(1, torch.arange(LENGTH - 1, -1, -1))) + x,
        {"linear": _linear()},
    ),
    "topk": Kind(_topk_mask, {"linear": _linear()}),
    "routed": Kind(
        _routed,
        {"router": lambda: nn.Linear(WIDTH, 2, bias=False), "one": _linear(), "two": _linear()},
    ),
    "softmax": Kind(lambda s, x, t: s.linear(x.softmax(-1)) + x, {"linear": _linear()}),
    "einsum": Kind(
        lambda s, x, t: torch.einsum("bld,de,bme->blm", x, s.weight, x)[..., :WIDTH] + x,
        {"weight": _weight(WIDTH, WIDTH)},
    ),
    "matmul": Kind(
        lambda s, x, t: x @ s.weight + s.bias,
        {"weight": _weight(WIDTH, WIDTH), "bias": _weight(WIDTH)},
    ),
    "cumsum": Kind(lambda s, x, t: s.linear(x).cumsum(1) + x, {"linear": _linear()}),
    "written": Kind(_written, {"linear": _linear()}),
    "counted": Kind(
        _counted, {"gain": _weight(WIDTH), "calls": lambda: torch.zeros((), dtype=torch.long)}
    ),
    "averaged": Kind(_averaged, {"linear": _linear(), "mean": lambda: torch.zeros(WIDTH)}),
    "prelu": Kind(lambda s, x, t: s.slope(x), {"slope": lambda: nn.PReLU(LENGTH)}),
    "framed": Kind(_framed, {"linear": _linear()}),
    "cubed": Kind(lambda s, x, t: Cubed.apply(s.linear(x)) + x, {"linear": _linear()}),
    "again": Kind(
        lambda s, x, t: checkpoint(s.linear, x, use_reentrant=False) + x, {"linear": _linear()}
    ),
    "spectrum": Kind(
        _spectrum,
        {"filter": lambda: nn.Parameter(torch.ones(LENGTH // 2 + 1, 1, dtype=torch.cfloat))},
    ),
    "dropped": Kind(
        lambda s, x, t: s.linear(s.dropout(x)),
        {"linear": _linear(), "dropout": lambda: nn.Dropout(0.2)},
    ),
    "noisy": Kind(_noisy, {"linear": _linear()}),
    "moments": Kind(
        lambda s, x, t: s.linear((x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 0.1)),
        {"linear": _linear()},
    ),
}
