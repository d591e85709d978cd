"""`DeviceTime`: a device's time by kind of work, from its kernels."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardwright_frameworks.traces.kernel_kind import KINDS, kind_of, operation_of

Array = NDArray[np.float64]

MOST_KERNELS = 5_000_000
"""Number of kernels kept per device; a longer trace is read up to there, with a note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTime:
    """Seconds per step of one device; compute, exposed communication, copies and idle time add up
    to step_time_s.

    steps          number of steps; 1 if the trace marks none: the numbers are then for its whole
                   span
    compute_s      time in which a kernel computes
    by_kind        busy seconds of matmul, attention, other
    exposed_communication_s   time with a message and without computation
    hidden_communication_s    time with a message and computation
    copy_s, idle_s   time with a copy only, and time without activity
    collectives    busy seconds by operation
    """

    device: str
    steps: int
    step_time_s: float
    compute_s: float
    exposed_communication_s: float
    hidden_communication_s: float
    copy_s: float
    idle_s: float
    kernels: int
    by_kind: Mapping[str, float] = field(default_factory=dict)
    collectives: Mapping[str, float] = field(default_factory=dict)


class Kernels:
    """The kernels of one device: begin and end in seconds."""

    def __init__(self) -> None:
        self.begin_s, self.end_s = array("d"), array("d")
        self.kinds = array("b")
        self.operations: dict[str, float] = {}
        self.left_out = 0

    def add(self, name: str, begin_s: float, duration_s: float) -> None:
        """Add a kernel."""
        if len(self.kinds) >= MOST_KERNELS:
            self.left_out += 1
            return
        kind = kind_of(name)
        self.begin_s.append(begin_s)
        self.end_s.append(begin_s + max(0.0, duration_s))
        self.kinds.append(KINDS.index(kind))
        if kind == "communication":
            operation = operation_of(name)
            self.operations[operation] = self.operations.get(operation, 0.0) + duration_s


def device_time(
    device: str, kernels: Kernels, windows: Sequence[tuple[float, float]]
) -> DeviceTime | None:
    """A device's time in some steps; without windows, in the whole span as one step.

    windows  begin and end of steps in seconds; the result is None if they contain no kernel
    """
    begin, end = np.asarray(kernels.begin_s), np.asarray(kernels.end_s)
    kinds = np.asarray(kernels.kinds)
    if not begin.size:
        return None
    steps = sorted(windows) or [(float(begin.min()), float(end.max()))]
    low, high = steps[0][0], steps[-1][1]
    kept = (end > low) & (begin < high)
    if not kept.any():
        return None
    begin, end, kinds = np.maximum(begin[kept], low), np.minimum(end[kept], high), kinds[kept]

    def busy(*names: str) -> float:
        mine = np.isin(kinds, [KINDS.index(name) for name in names])
        return covered_s(begin[mine], end[mine])

    count = len(steps)
    computing = busy("matmul", "attention", "other")
    both = busy("matmul", "attention", "other", "communication")
    communicating = busy("communication")
    everything = busy(*KINDS)
    return DeviceTime(
        device=device,
        steps=count,
        step_time_s=(high - low) / count,
        compute_s=computing / count,
        exposed_communication_s=(both - computing) / count,
        hidden_communication_s=(communicating - both + computing) / count,
        copy_s=(everything - both) / count,
        idle_s=(high - low - everything) / count,
        kernels=int(kept.sum()),
        by_kind={name: busy(name) / count for name in KINDS[:3]},
        collectives={name: seconds / count for name, seconds in sorted(kernels.operations.items())},
    )


def covered_s(begin: Array, end: Array) -> float:
    """Total seconds covered by the intervals.

    >>> covered_s(np.asarray([0.0, 1.0, 5.0]), np.asarray([2.0, 3.0, 6.0]))
    4.0
    """
    if not begin.size:
        return 0.0
    order = np.argsort(begin, kind="stable")
    first, last = begin[order], np.maximum.accumulate(end[order])
    starts = np.concatenate([[True], first[1:] > last[:-1]])
    ends = np.concatenate([starts[1:], [True]])
    return float(last[ends].sum() - first[starts].sum())
