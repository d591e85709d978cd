"""Fitting on some published runs and predicting the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evidence.coefficient_fit import Fitted, Origin, fit_coefficients
from evidence.compared_run import ComparedRun
from evidence.crossvalidate import members
from evidence.fit_spread import knowledge_of, spreads_with_effects
from evidence.groups import source_of
from evidence.targets import utilisation
from shardwright.commands.tables.predict_runs import PredictedRun
from shardwright.runs.complete import UnsupportedRunError, complete_run
from shardwright.runs.run import PublishedRun
from shardwright.runs.run_table import Measured
from simulator.training_run.fit.interval import step_intervals
from simulator.training_run.fit.step_spread import step_spreads
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficient_kinds import processor_of
from simulator.training_run.step.coefficients import Assigned, assign
from simulator.training_run.step.features import Features, features
from simulator.training_run.step.step_time import PricedRuns, step_parts
from simulator.values.prediction import Interval

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
    origin            [runs] source and device
    weights           [runs] of each row in a fit
    """

    published: tuple[PublishedRun, ...]
    runs: tuple[TrainingRun, ...]
    features: Features
    assigned: Assigned
    measured_s: Array
    origin: Origin
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
        except UnsupportedRunError:
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
        origin=Origin(
            sources=[source_of(run.id) for run in runs],
            devices=[processor_of(run.device) for run in runs],
        ),
        weights=weights,
    )


def fit(table: FitTable, *, without: Sequence[int] = (), start: Fitted | None = None) -> Fitted:
    """The coefficients fitted on all rows but some; with `start` its variances are kept and the
    search begins at its coefficients."""
    weights = table.weights.copy()
    weights[np.asarray(without, dtype=np.intp)] = 0.0
    return fit_coefficients(
        table.features, table.assigned, table.measured_s, table.origin, weights=weights, start=start
    )


def predicted_s(table: FitTable, fitted: Fitted, *, own: bool = False) -> Array:
    """[runs] step times as of a new source or, with `own`, with the effects of their own source."""
    if not own:
        return step_parts(table.features, table.assigned.of(fitted.values)).total_s
    values = fitted.values_of(table.assigned, table.origin)
    pairs = zip(table.origin.sources, table.origin.devices, strict=True)
    shift = np.asarray([fitted.clusters.get(pair, 0.0) for pair in pairs])
    return np.asarray(step_parts(table.features, values).total_s * np.exp(shift))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Left-out rows: time_s  [runs] predicted;  spread  [runs] of its logarithm."""

    time_s: Array
    spread: Array


def left_out(
    table: FitTable, folds: Mapping[str, str], *, start: Fitted | None = None, own: bool = False
) -> LeftOut:
    """[runs] step times, each under coefficients that were fitted without its fold.

    start  a fit of all rows, whose variances every fold takes
    own    add the effects that the other rows of the run's source have; the spread is then that of
           a row within its source
    """
    time_s = np.full(len(table.runs), np.nan)
    spread = time_s.copy()
    used = np.flatnonzero(table.weights > 0)
    for members_of_fold in members(folds, [run.id for run in table.runs]).values():
        rows = np.asarray(members_of_fold, dtype=np.intp)
        fitted = fit(table, without=members_of_fold, start=start)
        time_s[rows] = predicted_s(table, fitted, own=own)[rows]
        some = table.features.rows(rows)
        some = replace(some, microbatches=np.broadcast_to(some.microbatches, (rows.size,)))
        assigned = table.assigned.rows(rows)
        spread[rows] = (
            spreads_with_effects(some, assigned, table.origin.rows(rows), fitted)
            if own
            else step_spreads(
                PricedRuns([table.runs[i] for i in members_of_fold], some, assigned, fitted.values),
                knowledge_of(table.assigned, fitted, np.setdiff1d(used, rows)),
            )
        )
    return LeftOut(time_s=time_s, spread=spread)


def intervals(table: FitTable, left: LeftOut) -> tuple[Interval, ...]:
    """[runs] 90 % intervals of left-out step times, wider for options without a measured run."""
    times, spreads = left.time_s.tolist(), left.spread.tolist()
    return tuple(step_intervals(table.runs, times, spreads))
