"""Time on a CPU that other programs share: CPU seconds, waiting for a core, and medians of both.

Three clocks are read together. Wall time is what a user waits for. CPU time is what the thread
computed. Run-queue delay is how long the thread was ready but had no core, the kernel's own
record of disturbance (`run_delay`, second field of schedstat: Documentation/scheduler/
sched-stats.rst of the Linux kernel). A sample whose delay is more than `DELAY_LIMIT` of its wall
time is called disturbed and left out of medians; how many were left out is always reported.

`read_clock` costs 8 us, a `ThreadClock` kept open 2 us (2-core EPYC virtual machine, 2026-11).
Where the kernel has no schedstat, delay is None and a sample is judged by wall minus CPU time only
if its owner says that it never waits (`compute_only`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profiles.errors import InputError

# A delay of 5 % is the error that a prediction is allowed to have (6 %) less the spread of quiet
# samples (about 1 %): a sample above it can by itself make a right prediction look wrong.
DELAY_LIMIT = 0.05

# A median of fewer samples is the luck of one of them.
_MIN_QUIET = 3

_SCHEDSTAT = "/proc/thread-self/schedstat"


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The three clocks at one moment, in nanoseconds; only differences mean anything.

    delay_ns  None where the kernel does not say
    """

    wall_ns: int
    cpu_ns: int
    delay_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What passed between two readings; delay_s is None where the kernel does not say."""

    wall_s: float
    cpu_s: float
    delay_s: float | None = None

    def per(self, count: int) -> Sample:
        """The share of one of `count` equal repetitions."""
        delay_s = None if self.delay_s is None else self.delay_s / count
        return Sample(wall_s=self.wall_s / count, cpu_s=self.cpu_s / count, delay_s=delay_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The robust middle of samples.

    time_s     median over the samples used
    spread     half the distance between their 5 % and 95 % quantiles, relative to the median
    count      samples used; discarded  samples left out as disturbed
    disturbed  True where hardly a sample was undisturbed: then time_s comes from the least
               delayed half
    """

    time_s: float
    spread: float
    count: int
    discarded: int
    disturbed: bool = False


def read_clock() -> ClockReading:
    """The clocks of the calling thread."""
    try:
        with open(_SCHEDSTAT, "rb", buffering=0) as file:
            delay_ns = int(file.read(64).split()[1])
    except (OSError, IndexError, ValueError):
        delay_ns = None
    return ClockReading(time.perf_counter_ns(), time.thread_time_ns(), delay_ns)


class ThreadClock:
    """The clocks of the thread that makes it, read often: the kernel's file is kept open.

    Use it in that thread only, as a context manager or with `close`.
    """

    def __init__(self) -> None:
        try:
            self._file = os.open(_SCHEDSTAT, os.O_RDONLY)
        except OSError:
            self._file = -1

    def read(self) -> ClockReading:
        """The clocks now."""
        delay_ns = None
        if self._file >= 0:
            delay_ns = int(os.pread(self._file, 64, 0).split()[1])
        return ClockReading(time.perf_counter_ns(), time.thread_time_ns(), delay_ns)

    def close(self) -> None:
        """Give the file back; later readings know no delay."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def __enter__(self) -> ThreadClock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def between(start: ClockReading, end: ClockReading) -> Sample:
    """What passed from `start` to `end`; a delay that falls, as a sum over threads may, is 0."""
    delay_s = None
    if start.delay_ns is not None and end.delay_ns is not None:
        delay_s = max(0, end.delay_ns - start.delay_ns) * 1e-9
    return Sample(
        wall_s=(end.wall_ns - start.wall_ns) * 1e-9,
        cpu_s=(end.cpu_ns - start.cpu_ns) * 1e-9,
        delay_s=delay_s,
    )


def delay_fraction(sample: Sample, *, compute_only: bool = False) -> float:
    """Share of the wall time that was spent waiting for a core, in [0, 1]; 0 where unknown.

    compute_only  the thread never sleeps on its own, so that without a record of the delay wall
                  minus CPU time is the delay
    """
    if sample.wall_s <= 0:
        return 0.0
    delay_s = sample.delay_s
    if delay_s is None:
        delay_s = sample.wall_s - sample.cpu_s if compute_only else 0.0
    return min(1.0, max(0.0, delay_s / sample.wall_s))


def summarise(
    samples: Sequence[Sample],
    *,
    clock: str = "cpu",
    limit: float = DELAY_LIMIT,
    compute_only: bool = False,
) -> Summary:
    """Median and spread of the undisturbed samples.

    clock  `cpu` (seconds of an undisturbed core; for code that computes on this thread alone) or
           `wall` (for communication, which waits for others)

    Where fewer than three samples (or than all, if there are fewer) are undisturbed, the half with
    the smallest delay is used and the summary says `disturbed`. Raises InputError for no samples.
    """
    if not samples:
        raise InputError("no samples: nothing was measured")
    if clock not in ("cpu", "wall"):
        raise InputError(f"clock {clock!r} is not one of cpu, wall")
    fractions = [delay_fraction(sample, compute_only=compute_only) for sample in samples]
    used = [s for s, fraction in zip(samples, fractions, strict=True) if fraction <= limit]
    disturbed = len(used) < min(_MIN_QUIET, len(samples))
    if disturbed:
        order = sorted(range(len(samples)), key=lambda index: fractions[index])
        used = [samples[index] for index in order[: (len(samples) + 1) // 2]]
    times_s = [sample.cpu_s if clock == "cpu" else sample.wall_s for sample in used]
    low, median, high = (float(q) for q in np.quantile(times_s, (0.05, 0.5, 0.95)))
    return Summary(
        time_s=median,
        spread=(high - low) / 2 / median if median > 0 else 0.0,
        count=len(used),
        discarded=len(samples) - len(used),
        disturbed=disturbed,
    )
