"""Drift: change of the machine's speed between its profile and a run.

A shared machine changes its speed within minutes, which no prediction from its profile can include.
Reference kernels timed in both reveal the change. They explain an error, but do not correct it.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.values.measurement import Measurement
from simulator.values.prediction import Prediction

# Largest allowed change by kernel. `layers` resembles the workload: on a quiet 2-core EPYC virtual
# machine, 8 of 14 readings within 40 s were within 3 % of their median, all within 8 %. 14 readings
# of `memory` were between -14 % and +30 %, so it has no limit (2026-11-21).
LIMITS = {"layers": 0.03}

# Change at which a kernel without a limit is mentioned: more than the spread of `memory` above.
_NOTICED = 0.3

_WORDS = {"matmul": "matmul speed", "memory": "memory speed", "layers": "speed on two layers"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One reference kernel's seconds in the profile, and before, between and after a run's steps.

    during_s  None if not timed between the steps
    """

    kernel: str
    profile_s: float
    before_s: float
    after_s: float
    during_s: float | None = None

    @property
    def speed(self) -> float:
        """Speed relative to the profile, between the run's steps; otherwise the mean of before and
        after."""
        return self.profile_s / (self.during_s or (self.before_s + self.after_s) / 2)

    @property
    def disturbed(self) -> bool:
        """Whether the change exceeds the kernel's limit."""
        return abs(self.speed - 1) > LIMITS.get(self.kernel, float("inf"))


def drifts_of(prediction: Prediction, measured: Measurement) -> tuple[Drift, ...]:
    """One entry per reference kernel timed in both the profile and the run."""
    before = {point.kernel: point.time_s for point in measured.references_before}
    during = {point.kernel: point.time_s for point in measured.references_during}
    after = {point.kernel: point.time_s for point in measured.references_after}
    return tuple(
        Drift(
            kernel=point.kernel,
            profile_s=point.time_s,
            before_s=before[point.kernel],
            after_s=after[point.kernel],
            during_s=during.get(point.kernel),
        )
        for point in prediction.references
        if before.get(point.kernel, 0.0) > 0 and after.get(point.kernel, 0.0) > 0
    )


def drift_sentence(drifts: tuple[Drift, ...]) -> str:
    """The change of the machine's speed as text, or "" without a common reference kernel."""
    if not drifts:
        return ""
    speeds = [f"{_WORDS.get(drift.kernel, drift.kernel)} {drift.speed:.2f}" for drift in drifts]
    changed = f"Against the profile, during the run: {', '.join(speeds)}"
    if any(drift.disturbed for drift in drifts):
        return (
            f"{changed}: the machine's speed changed during the run, so these errors include that "
            "drift. Profile and run again."
        )
    moved = [_WORDS.get(d.kernel, d.kernel) for d in drifts if abs(d.speed - 1) > _NOTICED]
    if moved:
        return (
            f"{changed}: layers ran as fast as when profiled, {' and '.join(moved)} changed; "
            "errors of parts that depend on it may include that."
        )
    return f"{changed}: unchanged."
