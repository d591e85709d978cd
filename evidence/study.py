"""`AccuracyStudy`: the same runs predicted in several ways, next to what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from evidence.choice import (
    FitVerdicts,
    PairOrder,
    Regret,
    fit_verdicts,
    pair_order,
    regret,
)
from evidence.compared_run import ComparedRun
from evidence.groups import family_of, precision_of, size_of, source_of
from evidence.ledger import LedgerEntry
from evidence.releases import Release
from evidence.targets import TARGETS, Outcome, outcome
from profiles.errors import InputError
from shardwright.commands.tables.predict_runs import PredictedRun

# Groupings of the judged column, in the order of the page.
GROUPINGS: tuple[tuple[str, Callable[[ComparedRun], str]], ...] = (
    ("family", lambda row: family_of(row.run)),
    ("precision", lambda row: precision_of(row.run)),
    ("size", lambda row: size_of(row.run)),
)
# Sweeps over the layouts of one workload, with the target of issue 3 for the mean regret.
REGRET_TARGETS = (("vtrain-multi", 0.02), ("ultra", 0.05))
ORDER_TARGET = 0.95
FITS_TARGET = 0.96
# Name of the column whose folds are whole sources.
SOURCE_LEFT_OUT = "sources left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One way of predicting.

    name    `shipped`, `5-fold`
    folds   fold of each run by id if all of a source, framework or device was left out of the fit
    """

    name: str
    rows: tuple[ComparedRun, ...]
    folds: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyStudy:
    """Everything that the accuracy page shows.

    columns    ways of predicting the same runs; `judged` names the one that targets apply to
    baseline   a constant 45 % MFU on the same runs
    traced     the same runs from figures of modules that were built and traced, or none
    failed     predictions of layouts that are known to fail, or none
    ledger     openings of the locked sources
    releases   predictions that earlier releases made before the measurements were seen
    locked     number of runs of locked sources that were removed from the tables
    table      name of the tables of runs
    command    reproduces the page
    date       ISO date of the study

    Raises InputError without a column, if `judged` is not a column or if columns differ in rows.
    """

    columns: tuple[Column, ...]
    judged: str
    baseline: tuple[ComparedRun, ...]
    failed: tuple[PredictedRun, ...] = ()
    traced: tuple[ComparedRun, ...] = ()
    ledger: tuple[LedgerEntry, ...] = ()
    releases: tuple[Release, ...] = ()
    locked: int = 0
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


def regrets(study: AccuracyStudy) -> tuple[tuple[str, float, Regret], ...]:
    """Source, target and regret of each sweep over layouts."""
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
    """Sources with a lower mean absolute error of the baseline: name, our error, the baseline's.

    of   our column, by default the judged one
    Only rows that both predict count, so that neither gains by declining the hard ones.
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
