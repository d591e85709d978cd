"""Repeating a call until its time is known: samples on a CPU thread or on a CUDA stream.

A call repeated on the same tensors finds them in the nearest cache, and its output in memory that
was just freed. In a step dozens of ops come between, and outputs stay until the backward. So a
`Cycle` runs an op on many sets of equal tensors, keeps every output, and frees them all at its end,
when the allocator gives large ones back to the system, as after a step. On 14 small models (two
cores, torch 2.13, 2026-11-22, next to other work) the ops of a step took 0.71 of the step's CPU
time (median) repeated on the same tensors, 0.95 in cycles.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from profiles.hardware.probe.cpu_clock import Sample, between, read_clock

_MAX_SAMPLES = 60
Measure = Callable[[Callable[[], object], int], Sample]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long one case is measured: until `budget_s` of wall time and `min_samples` are there.

    link_budget_s instead for communication, whose times scatter more
    min_sample_s  one sample lasts at least this long, so that reading the clocks (8 us, measured
                  on a 2-core EPYC virtual machine, 2026-11) stays under 1 % of it
    """

    budget_s: float
    link_budget_s: float
    min_samples: int
    min_sample_s: float = 2e-3


def measure(call: Callable[[], object], repeats: int) -> Sample:
    """One sample: the mean of `repeats` calls."""
    return (_on_stream if torch.cuda.is_available() else measure_on_thread)(call, repeats)


def sample_call(
    call: Callable[[], object], effort: Effort, *, measure: Measure = measure
) -> list[Sample]:
    """Samples of one `call`, each the mean over enough repetitions to be read exactly.

    The first calls warm up caches and allocators and are not counted. On CUDA wall and CPU time
    are both the time between two events on the stream, and nothing waits for a core.
    """
    call()
    once_s = max(measure(call, 1).wall_s, 1e-7)
    repeats = max(1, math.ceil(effort.min_sample_s / once_s))
    end = time.perf_counter() + effort.budget_s
    samples: list[Sample] = []
    while len(samples) < effort.min_samples or (
        time.perf_counter() < end and len(samples) < _MAX_SAMPLES
    ):
        samples.append(measure(call, repeats))
    return samples


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call before each of which `prepare` runs, which is not timed (on a CPU thread)."""

    call: Callable[[], object]
    prepare: Callable[[], object]

    def __call__(self) -> None:
        self.prepare()
        self.call()


def measure_on_thread(call: Callable[[], object], repeats: int) -> Sample:
    """As `measure`, of what this thread computes itself, on whatever machine."""
    if not isinstance(call, Prepared):
        start = read_clock()
        for _ in range(repeats):
            call()
        return between(start, read_clock()).per(repeats)
    samples = []
    for _ in range(repeats):
        call.prepare()
        start = read_clock()
        call.call()
        samples.append(between(start, read_clock()))
    delays = [s.delay_s for s in samples if s.delay_s is not None]
    return Sample(
        wall_s=sum(s.wall_s for s in samples),
        cpu_s=sum(s.cpu_s for s in samples),
        delay_s=sum(delays) if delays else None,
    ).per(repeats)


def _on_stream(call: Callable[[], object], repeats: int) -> Sample:
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    time_s = start.elapsed_time(end) * 1e-3 / repeats
    return Sample(wall_s=time_s, cpu_s=time_s, delay_s=0.0)


def resident_bytes() -> int:
    """Main memory that this process holds now (Linux), or 0 where the kernel does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


# Tensors of one cycle, unless two sets are larger: beyond the caches that a core has for itself
# (at most 2 MiB of L2: Intel Xeon 6, intel.com), and beyond its share of most shared ones.
_BYTES = 32 * 2**20
_MOST = 64


class Cycle:
    """`count` calls of one op on sets of equal tensors; calling it runs them all once."""

    def __init__(self, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        def copy(x: Any) -> Any:
            return x.clone() if isinstance(x, Tensor) else x

        kept = tree_leaves((args, func(*args)))
        moved = sum(x.numel() * x.element_size() for x in kept if isinstance(x, Tensor))
        self.count = max(2, min(_MOST, _BYTES // max(1, moved)))
        self.func = func
        self.sets = [args, *(tree_map(copy, args) for _ in range(self.count - 1))]

    def __call__(self) -> None:
        with torch.no_grad():
            outputs = [self.func(*args) for args in self.sets]
        del outputs
