"""Clocks of a recorder: host time on a CPU, device events on an accelerator.

An accelerator runs asynchronously, so host time around a launch is meaningless. Events are recorded
in the stream of the device, and read at the end of a step, so that no action waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from profiles.hardware.probe.cpu_clock import ClockReading, Sample, between, read_clock


@dataclass(frozen=True, slots=True)
class Moment:
    """A reading of the host's clocks and, on an accelerator, the event recorded at that point of
    the stream."""

    host: ClockReading
    event: Any = None


class Clock:
    """Marks moments during a step and measures the time between them afterwards. On an accelerator,
    wall seconds are device time, and CPU seconds are the host's launch time.

    event  creates a timing event (`torch.Event` of the device)
    """

    def __init__(self, device: torch.device, event: Callable[[], Any] | None = None) -> None:
        self._device, self._behind = device, device.type != "cpu"
        self._event = event or partial(torch.Event, device, enable_timing=True)

    def now(self) -> Moment:
        """This moment."""
        event = None
        if self._behind:
            event = self._event()
            event.record()
        return Moment(read_clock(), event)

    def settle(self) -> None:
        """Wait until the device has reached all marked moments."""
        if self._behind:
            torch.accelerator.synchronize(self._device)

    def sample(self, begin: Moment, end: Moment) -> Sample:
        """The time between two moments, after `settle`."""
        passed = between(begin.host, end.host)
        if not self._behind:
            return passed
        return replace(passed, wall_s=1e-3 * begin.event.elapsed_time(end.event))
