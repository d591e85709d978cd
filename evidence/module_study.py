"""Predicted steps of modules beside measured ones: errors by group, and whether batches fit."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evidence.compared_run import is_inside, relative_error
from evidence.statistics import ErrorSummary, share, summarise
from shardwright.commands.tables.predict_runs import OK, PredictedRun
from shardwright.runs.module_table import MeasuredModule


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedModule:
    """A row's measurement, its prediction, and that of the next batch, which did not fit (None
    where the table names none)."""

    measured: MeasuredModule
    predicted: PredictedRun
    following: PredictedRun | None = None

    @property
    def error(self) -> float | None:
        """Relative error of the step time, None where either is missing."""
        return relative_error(self.predicted.step_time_s, self.measured.step_time_s)

    @property
    def memory_error(self) -> float | None:
        """Relative error of the peak, None where either is missing."""
        return relative_error(self.predicted.peak_memory_gib, self.measured.peak_memory_gib)

    @property
    def inside(self) -> bool:
        """Whether the measured step lies in the predicted interval."""
        made = self.predicted
        return is_inside(self.measured.step_time_s, made.step_time_low_s, made.step_time_high_s)

    @property
    def fits_right(self) -> bool | None:
        """Whether the batch that fitted is said to fit and the next one not to."""
        if self.following is None or self.predicted.fits is None or self.following.fits is None:
            return None
        return self.predicted.fits and not self.following.fits


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleErrors:
    """Of one group of rows; nan where nothing was measured.

    step    errors of the step time;  bias  their median
    memory, fits_right   rows with a figure, and their median error or share that is right
    """

    name: str
    rows: int
    step: ErrorSummary
    bias: float
    memory_rows: int
    memory: float
    fits_rows: int
    fits_right: float


def module_errors(name: str, rows: Sequence[ComparedModule]) -> ModuleErrors:
    """The errors of a group."""
    known = [(row.error, row.inside) for row in rows if row.error is not None]
    errors = [error for error, _ in known]
    memory = [abs(row.memory_error) for row in rows if row.memory_error is not None]
    fits = [row.fits_right for row in rows if row.fits_right is not None]
    return ModuleErrors(
        name=name,
        rows=len(rows),
        step=summarise(errors, [inside for _, inside in known]),
        bias=_median(errors),
        memory_rows=len(memory),
        memory=_median(memory),
        fits_rows=len(fits),
        fits_right=share(fits),
    )


def by_group(
    rows: Sequence[ComparedModule], of: Callable[[MeasuredModule], str]
) -> tuple[ModuleErrors, ...]:
    """The errors of each group, by name."""
    groups: dict[str, list[ComparedModule]] = {}
    for row in rows:
        groups.setdefault(of(row.measured) or "-", []).append(row)
    return tuple(module_errors(name, groups[name]) for name in sorted(groups))


def unpredicted(rows: Sequence[ComparedModule]) -> tuple[tuple[str, int], ...]:
    """Why rows have no prediction, and how many each."""
    found = Counter(row.predicted.status for row in rows if row.predicted.status != OK)
    return tuple(sorted(found.items(), key=lambda pair: (-pair[1], pair[0])))


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else math.nan
