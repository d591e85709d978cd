"""What a recorder reads time from: the host where it computes, events of a device elsewhere.

An accelerator works behind the host: around a launch the host's clocks pass in no time. Events are
recorded in the device's own stream and read when it has caught up, at the end of a step, so that no
action waits for the device.
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
    """The host's clocks, and on a device the event that was recorded in its stream then."""

    host: ClockReading
    event: Any = None


class Clock:
    """Moments are marked as a step runs, and compared once it has settled. Of a device, wall
    seconds are its own, CPU seconds those that the host took to launch.

    event  makes an event that can be timed, `torch.Event` of the device
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
        """Wait until all marked moments have passed."""
        if self._behind:
            torch.accelerator.synchronize(self._device)

    def sample(self, begin: Moment, end: Moment) -> Sample:
        """The time between two moments, once settled: events give milliseconds."""
        passed = between(begin.host, end.host)
        if not self._behind:
            return passed
        return replace(passed, wall_s=1e-3 * begin.event.elapsed_time(end.event))
