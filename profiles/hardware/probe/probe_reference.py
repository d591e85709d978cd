"""Reference kernels: fixed loops that show whether this machine's speed has changed.

One computes (a product of small operands), one moves memory (a sum of arrays that fit into no
cache), and one resembles training: forward and backward of two linear layers. They run on all
devices at once when a machine is profiled, and again before and after every run. So a change of the
machine's speed can be distinguished from a wrong prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean, median

import torch

from profiles.hardware.catalogue.device import ReferencePoint
from profiles.hardware.probe.cpu_clock import summarise
from profiles.hardware.probe.probe_timing import Effort, measure_on_thread, sample_call

KERNELS = ("matmul", "memory", "layers")

# Rounds per window, which all devices begin together; one takes 40 ms (two cores, 2026-11-23).
ROUNDS = 8

# [256, 512] x [512, 512]: 2 MiB of operands and 0.13 GFLOP.
_MATMUL = (256, 512, 512)
# Three arrays of 32 MiB: 96 MiB, the largest L3 of a chiplet (AMD EPYC 9684X, amd.com).
_ARRAY_ELEMENTS = 2**23
_EFFORT = Effort(budget_s=0.0, link_budget_s=0.0, min_samples=4, min_sample_s=5e-3)


def time_references(
    budget_s: float = 0.4,
    *,
    barrier: Callable[[], object] | None = None,
    kernels: Sequence[str] = KERNELS,
) -> tuple[ReferencePoint, ...]:
    """Median CPU seconds of each kernel on this thread, from `budget_s` and at least four samples.

    barrier  called before each kernel, so that all devices run the same one
    """
    points = []
    for name in kernels:
        call = _kernel(name)
        call()
        if barrier is not None:
            barrier()
        effort = replace(_EFFORT, budget_s=budget_s)
        samples = sample_call(call, effort, measure=measure_on_thread)
        # The first third warms up clocks and pages. Other programs hardly change CPU seconds: no
        # sample is discarded as disturbed.
        found = summarise(samples[len(samples) // 3 :], limit=1.0)
        points.append(ReferencePoint(kernel=name, time_s=found.time_s, spread=found.spread))
    return tuple(points)


def time_rounds(barrier: Callable[[], object]) -> tuple[float, ...]:
    """CPU seconds of `layers` in each of `ROUNDS` rounds that all devices begin together."""
    call = _kernel("layers")
    call()
    found = []
    for _ in range(ROUNDS):
        barrier()
        found.append(measure_on_thread(call, 1).cpu_s)
    return tuple(found)


def slowest_over_mean(rounds: Sequence[Sequence[float]]) -> float:
    """Median over rounds of the slowest device's time, over the mean of the devices' medians.

    rounds  [devices][rounds] seconds

    >>> slowest_over_mean([[1.0, 1.0, 1.2], [1.0, 1.1, 1.0]])  # the slowest: 1.0, 1.1 and 1.2
    1.1
    """
    slowest: float = median(max(times) for times in zip(*rounds, strict=True))
    return slowest / fmean(median(times) for times in rounds)


def combined_references(
    readings: Sequence[Sequence[ReferencePoint]],
    middle: Callable[[Iterator[float]], float] = fmean,
) -> tuple[ReferencePoint, ...]:
    """The mean (or another `middle`) of several readings, kernel by kernel, with the largest
    spread; () without readings."""
    return tuple(
        ReferencePoint(
            kernel=points[0].kernel,
            time_s=middle(p.time_s for p in points),
            spread=max(p.spread for p in points),
        )
        for points in zip(*readings, strict=True)
    )


def _kernel(name: str) -> Callable[[], object]:
    if name == "matmul":
        m, n, k = _MATMUL
        a, b, product = torch.ones(m, k), torch.ones(k, n), torch.empty(m, n)
        return lambda: torch.mm(a, b, out=product)
    if name == "layers":
        # 256 tokens through 512 -> 2048 -> 512 and back, with accumulating gradients.
        wide, narrow = torch.nn.Linear(512, 2048), torch.nn.Linear(2048, 512)
        model, tokens = torch.nn.Sequential(wide, torch.nn.GELU(), narrow), torch.ones(256, 512)
        return lambda: model(tokens).sum().backward()
    x, y = torch.ones(_ARRAY_ELEMENTS), torch.ones(_ARRAY_ELEMENTS)
    total = torch.empty_like(x)
    return lambda: torch.add(x, y, out=total)
