"""What a recorder reads time from: the host where it computes, events of a device elsewhere.

An accelerator works behind the host: around a launch the host's clocks pass in no time. Events are
recorded in the device's own stream and read when it has caught up, at the end of a step, so that no
action waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from profiles.hardware.probe.cpu_clock import ClockReading, Sample, between, read_clock


class Clock(Protocol):
    """Moments are marked as a step runs, and compared once it has settled."""

    def now(self) -> Any:
        """This moment."""
        ...

    def settle(self) -> None:
        """Wait until all marked moments have passed."""
        ...

    def sample(self, begin: Any, end: Any) -> Sample:
        """What passed between two moments."""
        ...


class HostClock:
    """The clocks of the calling thread."""

    def now(self) -> ClockReading:
        """The clocks now."""
        return read_clock()

    def settle(self) -> None:
        """Nothing runs behind the host."""

    def sample(self, begin: ClockReading, end: ClockReading) -> Sample:
        """Wall and CPU seconds, and waiting for a core."""
        return between(begin, end)


@dataclass(frozen=True, slots=True)
class DeviceMoment:
    """An event in the device's stream, and the host's clocks when it was recorded."""

    event: Any
    host: ClockReading


class DeviceClock:
    """Wall seconds are the device's; CPU seconds those that the host took to launch.

    event  makes an event that can be timed, `torch.Event` of the device
    """

    def __init__(self, device: torch.device, event: Callable[[], Any] | None = None) -> None:
        self._device = device
        self._event = event or (lambda: torch.Event(device, enable_timing=True))

    def now(self) -> DeviceMoment:
        """An event recorded in the current stream."""
        event = self._event()
        event.record()
        return DeviceMoment(event, read_clock())

    def settle(self) -> None:
        """Wait for the device."""
        torch.accelerator.synchronize(self._device)

    def sample(self, begin: DeviceMoment, end: DeviceMoment) -> Sample:
        """Once settled: events give milliseconds."""
        seconds = 1e-3 * begin.event.elapsed_time(end.event)
        return replace(between(begin.host, end.host), wall_s=seconds)


def clock_of(device: torch.device) -> Clock:
    """The clock of what runs on this device."""
    return HostClock() if device.type == "cpu" else DeviceClock(device)
