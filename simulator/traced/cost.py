"""`Cost`: seconds of an op or of a message, with their interval and basis."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds with a 90 % interval.

    method  `measured`, `interpolated` or `assumed`;  source  of the numbers
    launch_bound  the device waits for the launch of the next kernel
    """

    time_s: float
    low_s: float
    high_s: float
    method: str
    source: str
    launch_bound: bool = False

    def scaled(self, ratio: float, more_s: float = 0.0) -> Cost:
        """The cost times `ratio`, plus `more_s` seconds."""
        return replace(
            self,
            time_s=self.time_s * ratio + more_s,
            low_s=self.low_s * ratio + more_s,
            high_s=self.high_s * ratio + more_s,
        )
