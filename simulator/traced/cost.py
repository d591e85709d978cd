"""`Cost`: seconds of an op or of a message, with their interval, method and source."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.values.prediction import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost(Interval):
    """Seconds with a 90 % interval.

    method        `measured`, `interpolated` or `assumed`
    source        of the numbers
    launch_bound  whether the device waits for the launch of the next kernel
    """

    method: str
    source: str
    launch_bound: bool = False

    @property
    def time_s(self) -> float:
        """The seconds, as `value`."""
        return self.value
