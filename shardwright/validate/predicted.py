"""`PredictedRun`: one row of a batch prediction."""

from __future__ import annotations

from dataclasses import dataclass

PREDICTED_COLUMNS = (
    "id",
    "step_time_s",
    "step_time_low_s",
    "step_time_high_s",
    "peak_memory_gib",
    "peak_memory_low_gib",
    "peak_memory_high_gib",
    "fits",
    "status",
    "defaults",
    "memory_left_gib",
    "out_of_memory_probability",
    "memory_counted",
)
OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRun:
    """What was predicted of the run `id`; None where nothing was.

    The low and high values bound a 90 % interval; `status` is `ok` or `unsupported: why`.
    `memory_left_gib` is what the device has beyond what the run needs to run at all (`fits` where
    that is not negative), `out_of_memory_probability` that it needs more than the device has,
    `memory_counted` says what is needed of what there is, part by part.
    """

    id: str
    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    peak_memory_gib: float | None = None
    peak_memory_low_gib: float | None = None
    peak_memory_high_gib: float | None = None
    fits: bool | None = None
    status: str = OK
    defaults: str = ""
    memory_left_gib: float | None = None
    out_of_memory_probability: float | None = None
    memory_counted: str = ""
