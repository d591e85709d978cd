"""Reference kernels: fixed loops that show whether this machine is as fast as it was.

One computes (a product of small operands), one moves memory (a sum of arrays that fit into no
cache), and one is like the work itself: forward and backward of two linear layers. They are timed
on all devices at once when a machine is profiled, and again before and after every run, so that a
machine that has become slower or faster in between can be told from a prediction that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import torch

from profiles.hardware.catalogue.device import ReferencePoint
from profiles.hardware.probe.cpu_clock import Sample, between, read_clock

KERNELS = ("matmul", "memory", "layers")

# [256, 512] x [512, 512]: 2 MiB of operands and 0.13 GFLOP.
_MATMUL = (256, 512, 512)
# Three arrays of 32 MiB: 96 MiB, the largest L3 of a chiplet (AMD EPYC 9684X, amd.com).
_ARRAY_ELEMENTS = 2**23
_SAMPLE_S = 5e-3
_MIN_SAMPLES = 4


def time_references(
    budget_s: float = 0.4,
    *,
    barrier: Callable[[], object] | None = None,
    kernels: Sequence[str] = KERNELS,
) -> tuple[ReferencePoint, ...]:
    """Each kernel's median CPU seconds on this thread, from `budget_s` and four samples at least.

    barrier  called before each kernel, so that all devices are busy with the same one
    """
    points = []
    for name in kernels:
        call = _kernel(name)
        call()
        if barrier is not None:
            barrier()
        samples = _samples(call, budget_s)
        # The first third warms up clocks and pages.
        times = sorted(s.cpu_s for s in samples[len(samples) // 3 :])
        low, high = times[len(times) // 20], times[-1 - len(times) // 20]
        middle = median(times)
        points.append(ReferencePoint(kernel=name, time_s=middle, spread=(high - low) / 2 / middle))
    return tuple(points)


def combined_references(
    ranks: Sequence[Sequence[ReferencePoint]],
) -> tuple[ReferencePoint, ...]:
    """The mean over devices, kernel by kernel; the spread is the widest."""
    found = []
    for points in zip(*ranks, strict=True):
        found.append(
            ReferencePoint(
                kernel=points[0].kernel,
                time_s=sum(p.time_s for p in points) / len(points),
                spread=max(p.spread for p in points),
            )
        )
    return tuple(found)


def middle_references(
    readings: Sequence[Sequence[ReferencePoint]],
) -> tuple[ReferencePoint, ...]:
    """The median of several readings of one device, kernel by kernel; none of none."""
    return tuple(
        ReferencePoint(
            kernel=points[0].kernel,
            time_s=median(p.time_s for p in points),
            spread=max(p.spread for p in points),
        )
        for points in zip(*readings, strict=True)
    )


def _samples(call: Callable[[], object], budget_s: float) -> list[Sample]:
    begin = read_clock()
    call()
    repeats = max(1, round(_SAMPLE_S / max(1e-6, between(begin, read_clock()).wall_s)))
    samples: list[Sample] = []
    begin = read_clock()
    while len(samples) < _MIN_SAMPLES or between(begin, read_clock()).wall_s < budget_s:
        start = read_clock()
        for _ in range(repeats):
            call()
        samples.append(between(start, read_clock()).per(repeats))
    return samples


def _kernel(name: str) -> Callable[[], object]:
    if name == "matmul":
        m, n, k = _MATMUL
        a, b, product = torch.ones(m, k), torch.ones(k, n), torch.empty(m, n)
        return lambda: torch.mm(a, b, out=product)
    if name == "layers":
        return _layers()
    x, y = torch.ones(_ARRAY_ELEMENTS), torch.ones(_ARRAY_ELEMENTS)
    total = torch.empty_like(x)
    return lambda: torch.add(x, y, out=total)


def _layers() -> Callable[[], object]:
    """256 tokens through 512 -> 2048 -> 512 and back, with gradients that accumulate."""
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)
    )
    tokens = torch.ones(256, 512)

    def call() -> object:
        return model(tokens).sum().backward()

    return call
