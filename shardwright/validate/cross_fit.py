"""Fitting on some published runs and predicting the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from profiles.errors import ShardwrightError
from profiles.published.measured import Measured
from profiles.published.run import PublishedRun
from shardwright.validate.compared import ComparedRun
from shardwright.validate.crossvalidate import members
from shardwright.validate.groups import source_of
from shardwright.validate.predicted import PredictedRun
from shardwright.validate.targets import utilisation
from simulator.training_run.fit.fit import Fitted, fit_coefficients
from simulator.training_run.fit.step_spread import (
    Information,
    information_names,
    step_spreads,
)
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.reading.complete import complete_run
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficients import Assigned, assign
from simulator.training_run.step.features import Features, features
from simulator.training_run.step.step_time import step_parts

Array = NDArray[np.float64]

# A source counts for so many rows at most: the sweeps of one cluster would otherwise drown the
# others.
_FULL_WEIGHT = 40
# Rows below this MFU on several nodes carry network trouble (the README of the published runs says
# so of the largest sweep). Where the model knows such trouble (blocked_host.py) they count as a
# source of their own, so that they teach what it costs and have no more say than the others in
# what all share; elsewhere they are predicted, not fitted on.
_LEAST_MFU = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class FitTable:
    """Runs that can be predicted and have a measured step time, ready to be fitted on.

    published, runs   in one order;  measured_s  [runs]
    weights           [runs] of each row in a fit
    """

    published: tuple[PublishedRun, ...]
    runs: tuple[TrainingRun, ...]
    features: Features
    assigned: Assigned
    measured_s: Array
    weights: Array


def fit_table(published: Iterable[PublishedRun], measured: Iterable[Measured]) -> FitTable:
    """The table of the runs that can be predicted and were timed."""
    times = {row.id: row for row in measured}
    kept: list[PublishedRun] = []
    runs: list[TrainingRun] = []
    in_trouble: list[bool] = []
    explained: list[bool] = []
    for run in published:
        found = times.get(run.id)
        if found is None or not found.step_time_s:
            continue
        try:
            completed = complete_run(run)
        except ShardwrightError:
            continue
        reached = utilisation(
            ComparedRun(run=run, measured=found, predicted=PredictedRun(id=run.id))
        )
        kept.append(run)
        runs.append(completed)
        slow = reached is not None and reached < _LEAST_MFU and completed.num_nodes > 1
        in_trouble.append(slow and completed.device.startswith("h100"))
        known = load_framework(completed.stack).blocking_messages
        explained.append(known or not in_trouble[-1])
    groups = np.asarray(
        [f"{source_of(run.id)}, {slow}" for run, slow in zip(runs, in_trouble, strict=True)]
    )
    weights = np.zeros(len(runs))
    for group in sorted(set(groups.tolist())):
        mine = (groups == group) & np.asarray(explained)
        if not mine.any():
            continue
        weights[mine] = min(1.0, _FULL_WEIGHT / int(mine.sum()))
    return FitTable(
        published=tuple(kept),
        runs=tuple(runs),
        features=features(runs),
        assigned=assign(runs),
        measured_s=np.asarray([times[run.id].step_time_s for run in runs], dtype=np.float64),
        weights=weights,
    )


def fit(table: FitTable, *, without: Sequence[int] = (), start: Array | None = None) -> Fitted:
    """The coefficients fitted on all rows but some; `start`  where the search begins."""
    weights = table.weights.copy()
    weights[np.asarray(without, dtype=np.intp)] = 0.0
    return fit_coefficients(
        table.features, table.assigned, table.measured_s, weights=weights, start=start
    )


def predicted_s(table: FitTable, values: Array) -> Array:
    """[runs] step times under coefficients."""
    return step_parts(table.features, table.assigned.of(values)).total_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Of rows that were left out: time_s  [runs] predicted;  spread  [runs] of its logarithm, as
    the rows that were fitted on tell (step_spread.py)."""

    time_s: Array
    spread: Array


def left_out(table: FitTable, folds: Mapping[str, str], *, start: Array | None = None) -> LeftOut:
    """[runs] step times, each under coefficients that were fitted without its fold.

    start  [coefficients] where each search begins: a fit of all rows is near, and shows in what
           comes out by no more than the searches' tolerance
    """
    time_s = np.full(len(table.runs), np.nan)
    spread = time_s.copy()
    for members_of_fold in members(folds, [run.id for run in table.runs]).values():
        rows = np.asarray(members_of_fold, dtype=np.intp)
        fitted = fit(table, without=members_of_fold, start=start)
        time_s[rows] = predicted_s(table, fitted.values)[rows]
        spread[rows] = step_spreads(
            [table.runs[i] for i in members_of_fold],
            table.features.rows(rows),
            table.assigned.rows(rows),
            fitted.values,
            information_of(table, fitted),
        )
    return LeftOut(time_s=time_s, spread=spread)


def information_of(table: FitTable, fitted: Fitted) -> Information:
    """What the rows of a fit say of the coefficients."""
    return Information(names=information_names(table.assigned), matrix=fitted.information)
