"""Time a call by repetition, on a CPU thread or on a CUDA stream.

A call repeated on the same tensors finds them in the nearest cache, and its output in memory that
was just freed. In a training step dozens of ops run in between, and outputs stay until the
backward. So a `cycle` runs an op on many sets of equal tensors, keeps all outputs, and frees them
together, as after a step. On 14 small models (two cores, torch 2.13, 2026-11-22, with other work)
the ops of a step took 0.71 of the step's CPU time (median) on the same tensors, 0.95 in cycles.
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
from torch.utils._pytree import tree_leaves, tree_map_only

from profiles.hardware.probe.cpu_clock import Sample, between, read_clock

_MAX_SAMPLES = 60
Measure = Callable[[Callable[[], object], int], Sample]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long one case is measured: at least `budget_s` of wall time and `min_samples` samples.

    link_budget_s  of communication, whose times vary more
    min_sample_s  minimum of one sample, so that reading the clocks (cpu_clock.py) takes less than
                  1 % of it
    reference_s   of each reference kernel (probe_reference.py)
    host_samples  of the host's time per op (probe_host.py)
    """

    budget_s: float
    link_budget_s: float
    min_samples: int
    min_sample_s: float = 2e-3
    reference_s: float = 0.4
    host_samples: int = 31


def measure(call: Callable[[], object], repeats: int) -> Sample:
    """One sample: the mean of `repeats` calls."""
    return (_on_stream if torch.cuda.is_available() else measure_on_thread)(call, repeats)


def sample_call(
    call: Callable[[], object], effort: Effort, *, measure: Measure = measure
) -> list[Sample]:
    """Samples of one `call`, each the mean over enough repetitions for the clocks' resolution.

    The first calls warm up caches and allocators and are not counted. On CUDA, wall and CPU time
    are both the time between two events on the stream, and the delay is 0.
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
class TimedCall:
    """A call that does the work of a case `count` times; `prepare` runs untimed before each call
    (on a CPU thread)."""

    call: Callable[[], object]
    count: int = 1
    prepare: Callable[[], object] | None = None

    def __call__(self) -> None:
        if self.prepare is not None:
            self.prepare()
        self.call()


def measure_on_thread(call: Callable[[], object], repeats: int) -> Sample:
    """As `measure`, but always on the CPU thread."""
    prepare = None
    if isinstance(call, TimedCall):  # its own call takes time too
        prepare = call.prepare
        call = call.call
    if prepare is None:
        start = read_clock()
        for _ in range(repeats):
            call()
        return between(start, read_clock()).per(repeats)
    samples = []
    for _ in range(repeats):
        prepare()
        start = read_clock()
        call()
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
    function = call.call if isinstance(call, TimedCall) else call
    start.record()
    for _ in range(repeats):
        function()
    end.record()
    end.synchronize()
    time_s = start.elapsed_time(end) * 1e-3 / repeats
    return Sample(wall_s=time_s, cpu_s=time_s, delay_s=0.0)


def resident_bytes() -> int:
    """Main memory of this process (Linux), or 0 if the kernel does not report it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


# Tensors of one cycle, unless two sets are larger: more than a core's private caches (at most 2 MiB
# of L2: Intel Xeon 6, intel.com) and its share of most shared ones.
_BYTES = 32 * 2**20
_MOST = 64


def cycle(func: Callable[..., Any], args: tuple[Any, ...]) -> TimedCall:
    """Calls of one op, each on its own set of equal tensors."""
    kept = tree_leaves((args, func(*args)))
    moved = sum(x.numel() * x.element_size() for x in kept if isinstance(x, Tensor))
    count = max(2, min(_MOST, _BYTES // max(1, moved)))
    sets = [args, *(tree_map_only(Tensor, Tensor.clone, args) for _ in range(count - 1))]

    def call() -> None:
        with torch.no_grad():
            outputs = [func(*each) for each in sets]
        del outputs

    return TimedCall(call, count)
