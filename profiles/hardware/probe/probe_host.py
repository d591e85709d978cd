"""Host time of a training step beyond its kernels, on a CPU that does both.

    view        one of a chain of views, forward and backward: a view has no kernel
    module      the call of an empty module
    checkpoint  a call under torch.utils.checkpoint, beyond the call itself and its repetition
    op          a small network of many kinds of op, forward and backward, less its ops alone, its
                views and its modules: autograd's bookkeeping and instruction-cache misses

The network's tensors have some dozens of elements, so that its kernels take almost no time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from profiles.hardware.catalogue.device import HostPoint
from profiles.hardware.probe.recorded_calls import RecordedCalls
from profiles.model.graph import Phase

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
_LINKS = 64


def measure_host(samples: int) -> tuple[HostPoint, ...]:
    """Median CPU seconds of each kind and pass."""
    x = torch.randn(4, 8)
    views = _chain(lambda y: y.view(4, 8), x, samples)
    module_s, _ = _chain(nn.Identity(), x, samples)
    plain = _chain(torch.sin, x, samples)
    kept = _chain(lambda y: checkpoint(torch.sin, y, use_reentrant=False), x, samples)
    points = {
        "view": views,
        "module": (module_s, 0.0),
        # torch ends the repetition once the input is recomputed, before the op runs.
        "checkpoint": (max(0.0, kept[0] - plain[0]), max(0.0, kept[1] - plain[1])),
        "op": _ops(views, module_s, samples),
    }
    return tuple(
        HostPoint(kind=kind, phase=str(phase), time_s=seconds)
        for kind, times in points.items()
        for phase, seconds in zip((Phase.FORWARD, Phase.BACKWARD), times, strict=True)
    )


class SmallNetwork(nn.Module):
    """Layers of many kinds on tensors of some dozens of elements."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(_Layer() for _ in range(4))
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, length] of tokens below 16 -> logits [batch, 16]"""
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x)
        x = F.relu(self.norm(self.conv(x.transpose(1, 2))))
        out: Tensor = self.head(x.mean(2))
        return out


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.mixed = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)
        self.wide = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.gate = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mixed(self.norm(x)).chunk(3, dim=-1)
        scores = torch.softmax(q @ k.transpose(1, 2) * 0.35, dim=-1)
        x = x + self.out(scores @ v)
        x = x + self.wide(x)
        return torch.cat([x[..., :4], torch.sigmoid(self.gate(x))[..., 4:]], dim=-1)


def _ops(views_s: tuple[float, float], module_s: float, samples: int) -> tuple[float, float]:
    """Seconds per op in addition to the op alone, forward and backward."""
    network = SmallNetwork()
    tokens = torch.arange(24).view(3, 8) % 16
    targets = torch.tensor([1, 2, 3])

    def forward() -> Tensor:
        return F.cross_entropy(network(tokens), targets)

    times = [_passes(forward, lambda loss: loss.backward()) for _ in range(samples)]
    whole = [median(t[i] for t in times[samples // 3 :]) for i in (0, 1)]
    with RecordedCalls() as there:
        loss = forward()
    with RecordedCalls() as back:
        loss.backward()
    found = []
    entered = (sum(1 for _ in network.modules()), 0)
    for i, calls in enumerate((there.calls, back.calls)):
        detach = torch.ops.aten.detach.default
        compute = [c for c in calls if not (c[0] is detach or getattr(c[0], "is_view", False))]
        rest = whole[i] - _alone(compute) - (len(calls) - len(compute)) * views_s[i]
        found.append(max(0.0, rest - entered[i] * module_s) / len(compute))
    return found[0], found[1]


def _chain(step: Callable[[Tensor], Tensor], start: Tensor, samples: int) -> tuple[float, float]:
    """Median seconds of one link of a chain of calls, forward and backward."""

    def forward(x: Tensor) -> Tensor:
        for _ in range(_LINKS):
            x = step(x)
        return x

    def sample() -> tuple[float, float]:
        x = start.clone().requires_grad_()
        return _passes(lambda: forward(x), lambda y: y.backward(torch.ones_like(y)))

    times = [sample() for _ in range(samples)]
    return median(t[0] for t in times) / _LINKS, median(t[1] for t in times) / _LINKS


def _passes(
    forward: Callable[[], Tensor], backward: Callable[[Tensor], object]
) -> tuple[float, float]:
    """Seconds of a forward and of its backward."""
    begin = time.thread_time()
    out = forward()
    middle = time.thread_time()
    backward(out)
    return middle - begin, time.thread_time() - middle


def _alone(calls: Sequence[Call]) -> float:
    """Total seconds of the calls, each timed alone and without autograd."""
    total = 0.0
    with torch.no_grad():
        for func, args, kwargs in calls:
            samples = []
            for _ in range(5):
                begin = time.thread_time()
                for _ in range(_LINKS):
                    func(*args, **kwargs)
                samples.append((time.thread_time() - begin) / _LINKS)
            total += median(samples)
    return total
