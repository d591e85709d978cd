"""Errors of predictions, coverage of intervals, rank correlation. Pure functions on values."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from evidence.compared_run import ComparedRun

# A rank correlation of two values is 1 or -1 whatever they are.
_LEAST_RANKED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """Relative errors `predicted / measured - 1` of `count` rows; nan without a row.

    bias               mean signed error
    interval_coverage  share of the rows with the measurement in the predicted interval
    """

    count: int
    mean_absolute: float = math.nan
    median_absolute: float = math.nan
    bias: float = math.nan
    interval_coverage: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Predictions of some rows.

    rows, measured    number of rows, and of those with a measured step time
    predicted_share   share of the rows with the status `ok`
    rank_correlation  Spearman's within groups that differ only in layout, weighted by rows
    """

    rows: int
    measured: int
    predicted_share: float
    step_time: ErrorSummary
    memory: ErrorSummary
    rank_correlation: float


def summarise(errors: Sequence[float], inside: Sequence[bool]) -> ErrorSummary:
    """The summary of signed relative errors and of whether each row is in its interval.

    >>> summarise([0.1, -0.3], [True, False]).mean_absolute
    0.2
    """
    if not errors:
        return ErrorSummary(count=0)
    signed = np.asarray(errors, dtype=float)
    absolute = np.abs(signed)
    return ErrorSummary(
        count=len(signed),
        mean_absolute=float(absolute.mean()),
        median_absolute=float(np.median(absolute)),
        bias=float(signed.mean()),
        interval_coverage=share(inside),
    )


def accuracy(rows: Sequence[ComparedRun]) -> Accuracy:
    """All statistics of the predictions of `rows`; shares of no rows are nan."""
    return Accuracy(
        rows=len(rows),
        measured=sum(row.measured.step_time_s is not None for row in rows),
        predicted_share=share([row.supported for row in rows]),
        step_time=step_time_summary(rows),
        memory=memory_summary(rows),
        rank_correlation=rank_correlation(rows),
    )


def step_time_summary(rows: Iterable[ComparedRun]) -> ErrorSummary:
    """Errors of the step time of the compared rows."""
    return _summary((row.step_time_error, row.step_time_inside) for row in rows)


def memory_summary(rows: Iterable[ComparedRun]) -> ErrorSummary:
    """Errors of the peak memory of the compared rows."""
    return _summary((row.memory_error, row.memory_inside) for row in rows)


def _summary(rows: Iterable[tuple[float | None, bool]]) -> ErrorSummary:
    pairs = [(error, inside) for error, inside in rows if error is not None]
    return summarise([error for error, _ in pairs], [inside for _, inside in pairs])


def worst_rows(rows: Iterable[ComparedRun], count: int) -> tuple[ComparedRun, ...]:
    """The `count` rows with the largest absolute step-time error; ties are broken by id."""
    ranked = [(row.step_time_error, row) for row in rows]
    known = [(abs(error), row.run.id, row) for error, row in ranked if error is not None]
    known.sort(key=lambda entry: (-entry[0], entry[1]))
    return tuple(row for _, _, row in known[:count])


def rank_correlation(rows: Iterable[ComparedRun]) -> float:
    """Spearman's correlation of predicted and measured step time within workloads.

    Rows of one source, model, cluster size, sequence and batch differ only in their layout. The
    mean over groups of 3 or more, weighted by their rows; nan without such a group, or if one side
    is constant in every group.
    """
    groups: dict[Hashable, list[tuple[float, float]]] = {}
    for row in rows:
        predicted, measured = row.predicted.step_time_s, row.measured.step_time_s
        if predicted is not None and measured is not None:
            groups.setdefault(_workload(row), []).append((predicted, measured))
    weighted, weight = 0.0, 0
    for pairs in groups.values():
        if len(pairs) < _LEAST_RANKED:
            continue
        value = spearman([p for p, _ in pairs], [m for _, m in pairs])
        if not math.isnan(value):
            weighted += value * len(pairs)
            weight += len(pairs)
    return weighted / weight if weight else math.nan


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """Spearman's rank correlation, ties sharing their mean rank; nan if a side is constant.

    >>> spearman([1.0, 2.0, 3.0], [10.0, 30.0, 20.0])
    0.5
    """

    if len(set(left)) < 2 or len(set(right)) < 2:
        return math.nan
    return float(spearmanr(left, right).statistic)


def _workload(row: ComparedRun) -> Hashable:
    run = row.run
    return run.source, run.model, run.num_devices, run.seq_len, run.global_batch


def share(claims: Sequence[bool]) -> float:
    """Share of true claims; nan without any."""
    return sum(claims) / len(claims) if claims else math.nan
