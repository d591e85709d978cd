"""Time on a shared CPU: CPU seconds, time spent waiting for a core, and medians of both.

Three clocks are read together: wall time, CPU time of the thread, and run-queue delay. The last is
the time that the thread was ready but had no core, as recorded by the kernel (`run_delay`, second
field of schedstat: Documentation/scheduler/sched-stats.rst of the Linux kernel). A sample is
disturbed if the delay exceeds `DELAY_LIMIT` of its wall time. Disturbed samples are discarded, and
their number is always reported.

`read_clock` costs 2 us (2-core EPYC virtual machine, 2026-11), as the kernel's file stays open.
Without schedstat the delay is None; a sample is then judged by wall minus CPU time only if the
caller guarantees that the code never sleeps (`compute_only`).
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profiles.errors import InputError

# The allowed error of a prediction (6 %) minus the spread of undisturbed samples (about 1 %): a
# longer delay alone can make a correct prediction look wrong.
DELAY_LIMIT = 0.05

# With fewer samples, the median depends on a single one.
_MIN_UNDISTURBED = 3


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The three clocks at one moment, in nanoseconds; only differences are meaningful.

    delay_ns  None if the kernel does not report it
    """

    wall_ns: int
    cpu_ns: int
    delay_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Seconds between two readings; delay_s is None if the kernel does not report it."""

    wall_s: float
    cpu_s: float
    delay_s: float | None = None

    def scaled(self, factor: float) -> Sample:
        """Every time multiplied by `factor`."""
        delay_s = None if self.delay_s is None else self.delay_s * factor
        return Sample(wall_s=self.wall_s * factor, cpu_s=self.cpu_s * factor, delay_s=delay_s)

    def per(self, count: int) -> Sample:
        """The share of one of `count` equal repetitions."""
        delay_s = None if self.delay_s is None else self.delay_s / count
        return Sample(wall_s=self.wall_s / count, cpu_s=self.cpu_s / count, delay_s=delay_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Median and spread of samples.

    time_s     median of the used samples
    spread     half the distance between their 5 % and 95 % quantiles, relative to the median
    count      number of used samples
    discarded  number of disturbed samples that were left out
    disturbed  True if too few samples were undisturbed: time_s is then from the least delayed half
    """

    time_s: float
    spread: float
    count: int
    discarded: int
    disturbed: bool = False


def read_clock() -> ClockReading:
    """The clocks of the calling thread."""
    file = _schedstat(os.getpid(), threading.get_native_id())
    delay_ns = int(os.pread(file, 64, 0).split()[1]) if file >= 0 else None
    return ClockReading(time.perf_counter_ns(), time.thread_time_ns(), delay_ns)


@functools.cache
def _schedstat(process: int, thread: int) -> int:
    """The kernel's file about the calling thread, open for many readings; -1 if there is none."""
    try:
        return os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    except OSError:
        return -1


def between(start: ClockReading, end: ClockReading) -> Sample:
    """Seconds from `start` to `end`; a decreasing delay (a sum over threads) counts as 0."""
    delay_s = None
    if start.delay_ns is not None and end.delay_ns is not None:
        delay_s = max(0, end.delay_ns - start.delay_ns) * 1e-9
    return Sample(
        wall_s=(end.wall_ns - start.wall_ns) * 1e-9,
        cpu_s=(end.cpu_ns - start.cpu_ns) * 1e-9,
        delay_s=delay_s,
    )


def delay_fraction(sample: Sample, *, compute_only: bool = False) -> float:
    """Share of the wall time spent waiting for a core, in [0, 1]; 0 if unknown.

    compute_only  the thread never sleeps: without a recorded delay, wall minus CPU time is the
                  delay
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
           `wall` (for communication, which waits for other ranks)

    With fewer than three undisturbed samples (or fewer than all, if there are less than three), the
    half with the smallest delay is used and `disturbed` is set. Raises InputError without samples.
    """
    if not samples:
        raise InputError("no samples: nothing was measured")
    if clock not in ("cpu", "wall"):
        raise InputError(f"clock {clock!r} is not one of cpu, wall")
    fractions = [delay_fraction(sample, compute_only=compute_only) for sample in samples]
    used = [s for s, fraction in zip(samples, fractions, strict=True) if fraction <= limit]
    disturbed = len(used) < min(_MIN_UNDISTURBED, len(samples))
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
