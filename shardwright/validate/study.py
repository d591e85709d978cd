"""`AccuracyStudy`: the same runs predicted in several ways, beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from profiles.errors import InputError
from shardwright.validate.choice import (
    FitVerdicts,
    PairOrder,
    Regret,
    fit_verdicts,
    pair_order,
    regret,
)
from shardwright.validate.compared import ComparedRun
from shardwright.validate.groups import device_of, precision_of, size_of, source_of, stack_of
from shardwright.validate.predicted import PredictedRun
from shardwright.validate.statistics import ErrorSummary, step_time_summary
from shardwright.validate.targets import TARGETS, Outcome, outcome

# What each grouping is called, in the order of the report.
GROUPINGS: tuple[tuple[str, Callable[[ComparedRun], str]], ...] = (
    ("source", lambda row: source_of(row.run.id)),
    ("device", lambda row: device_of(row.run)),
    ("software stack", lambda row: stack_of(row.run)),
    ("precision", lambda row: precision_of(row.run)),
    ("size", lambda row: size_of(row.run)),
)
# Where the layouts of one workload are swept, with the target of issue 3 for the mean regret.
REGRET_TARGETS = (("vtrain-multi", 0.02), ("ultra", 0.05))
ORDER_TARGET = 0.95
FITS_TARGET = 0.96
# Of all rows, and of each source, the share that 90 % intervals should hold.
INTERVALS_TARGET = (0.85, 0.95)
SOURCE_INTERVALS_TARGET = 0.75
COVERAGE_TARGET = 0.97
# The column of rows whose whole source was left out, with intervals from the other sources.
SOURCE_LEFT_OUT = "leave one source out"
# One of fewer rows than this cannot tell 75 % from 90 %.
_FEWEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One way of predicting: its name (`in-sample`, `5-fold`) and the compared rows."""

    name: str
    rows: tuple[ComparedRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyStudy:
    """Everything that the accuracy page shows.

    columns    ways of predicting the same runs; `judged` names the one that targets apply to
    baseline   a constant 45 % MFU on the same runs
    traced     the same runs from figures of modules that were built and traced, or none
    failed     predictions of layouts that are known to fail, or none
    table      what the runs are, as the page says it
    command    what reproduces the page
    date       ISO date of the study

    Raises InputError where there is no column, `judged` is none of them or columns differ in rows.
    """

    columns: tuple[Column, ...]
    judged: str
    baseline: tuple[ComparedRun, ...]
    failed: tuple[PredictedRun, ...] = ()
    traced: tuple[ComparedRun, ...] = ()
    table: str
    command: str
    date: str

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if self.judged not in names:
            raise InputError(
                f"the column {self.judged!r} that targets apply to is none of "
                f"{', '.join(names) or 'none'}"
            )
        ids = {tuple(row.run.id for row in rows) for rows in self._all()}
        if len(ids) > 1:
            raise InputError("the columns and the baseline must hold the same runs in one order")

    def _all(self) -> tuple[tuple[ComparedRun, ...], ...]:
        traced = (self.traced,) if self.traced else ()
        return (*(column.rows for column in self.columns), self.baseline, *traced)

    @property
    def rows(self) -> tuple[ComparedRun, ...]:
        """The rows of the judged column."""
        return next(column.rows for column in self.columns if column.name == self.judged)


def outcomes(study: AccuracyStudy) -> tuple[Outcome, ...]:
    """Every target that has a row in the study, with what the judged column reaches."""
    found = (outcome(target, study.rows) for target in TARGETS)
    return tuple(result for result in found if result.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Honesty:
    """Intervals and coverage; nan where nothing could be counted.

    intervals         share of the rows whose measured step time lies in its 90 % interval
    worst_source      the source of 8 compared rows or more with the smallest such share, or ""
    worst_intervals   that share
    coverage          share of the rows that state devices, tp and pp and have a prediction
    strange           with whole sources left out, the mean over sources of the share of rows whose
                      measured step time lies in its interval
    strange_rows      the same share of all rows
    """

    intervals: float
    worst_source: str
    worst_intervals: float
    coverage: float
    strange: float
    strange_rows: float


def honesty(study: AccuracyStudy) -> Honesty:
    """The intervals and the coverage of the judged column."""
    shares: dict[str, float] = {}
    for source in {source_of(row.run.id) for row in study.rows}:
        step = step_time_summary(r for r in study.rows if source_of(r.run.id) == source)
        if step.count >= _FEWEST:
            shares[source] = step.interval_coverage
    worst = min(shares, key=lambda name: (shares[name], name), default="")
    stated = [
        row.supported
        for row in study.rows
        if row.run.num_devices is not None and row.run.tp is not None and row.run.pp is not None
    ]
    strange, strange_rows = _strange(study)
    return Honesty(
        intervals=step_time_summary(study.rows).interval_coverage,
        worst_source=worst,
        worst_intervals=shares.get(worst, math.nan),
        coverage=sum(stated) / len(stated) if stated else math.nan,
        strange=strange,
        strange_rows=strange_rows,
    )


def unseen_sources(study: AccuracyStudy) -> dict[str, ErrorSummary]:
    """Source -> errors of its steps with the whole source left out of the fit, for those that have
    a measured step; none without cross-validation."""
    rows = next((c.rows for c in study.columns if c.name == SOURCE_LEFT_OUT), ())
    groups: dict[str, list[ComparedRun]] = {}
    for row in rows:
        if row.step_time_error is not None:
            groups.setdefault(source_of(row.run.id), []).append(row)
    return {name: step_time_summary(found) for name, found in sorted(groups.items())}


def _strange(study: AccuracyStudy) -> tuple[float, float]:
    """What intervals hold where whole sources were left out: mean over sources, and of all rows."""
    shares = [found.interval_coverage for found in unseen_sources(study).values()]
    if not shares:
        return math.nan, math.nan
    rows = next(c.rows for c in study.columns if c.name == SOURCE_LEFT_OUT)
    return sum(shares) / len(shares), step_time_summary(rows).interval_coverage


def regrets(study: AccuracyStudy) -> tuple[tuple[str, float, Regret], ...]:
    """Source, target and regret where layouts were swept."""
    found = []
    for source, target in REGRET_TARGETS:
        rows = [row for row in study.rows if source_of(row.run.id) == source]
        if rows:
            found.append((source, target, regret(rows)))
    return tuple(found)


def schedule_order(study: AccuracyStudy) -> PairOrder:
    """How many pairs of schedules of the Zero Bubble rows are in the right order."""
    return pair_order([row for row in study.rows if source_of(row.run.id) == "zb"])


def sweep_verdicts(study: AccuracyStudy) -> FitVerdicts:
    """Fits or fails of the Ultra-Scale sweep: runs that ran, and the failed layouts."""
    ran = [row for row in study.rows if source_of(row.run.id) == "ultra"]
    return fit_verdicts(ran, study.failed)


def lost_to_baseline(study: AccuracyStudy, *, of: str = "") -> tuple[tuple[str, float, float], ...]:
    """Sources where the baseline's mean absolute error is smaller: name, ours (of the column `of`,
    else of the judged one), the baseline's.

    Over the rows that both predict, so that neither gains by declining the hard ones.
    """
    pairs: dict[str, list[tuple[float, float]]] = {}
    rows = next((column.rows for column in study.columns if column.name == of), study.rows)
    for row, dumb in zip(rows, study.baseline, strict=True):
        ours, theirs = row.step_time_error, dumb.step_time_error
        if ours is not None and theirs is not None:
            pairs.setdefault(source_of(row.run.id), []).append((abs(ours), abs(theirs)))
    lost = []
    for source in sorted(pairs):
        mine = sum(ours for ours, _ in pairs[source]) / len(pairs[source])
        their = sum(theirs for _, theirs in pairs[source]) / len(pairs[source])
        if mine > their:
            lost.append((source, mine, their))
    return tuple(lost)
