"""`PredictedRun`: one row of a batch prediction."""

from __future__ import annotations

from dataclasses import dataclass, fields

OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRun:
    """The prediction of the run `id`; None for a figure without one.

    low, high         bounds of the 90 % intervals
    fits              memory_left_gib, device memory minus the memory needed, is not negative
    status            `ok` or `unsupported: why`
    memory_counted    the memory needed and available, part by part
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


PREDICTED_COLUMNS = tuple(each.name for each in fields(PredictedRun))
"""Of the table of predictions, in their order."""
