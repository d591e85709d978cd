"""Quality of choices made from predictions: regret, order of pairs, fits or fails."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evidence.compared_run import ComparedRun
from shardwright.commands.tables.predict_runs import PredictedRun

LEAST_LAYOUTS = 5
CLOSE = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Regret of `groups` workloads: `measured(first ranked) / measured(best) - 1`.

    Mean and worst over the workloads; nan without one.
    """

    groups: int
    mean: float
    worst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOrder:
    """How many of `pairs` of layouts with different measured times are in the right order."""

    pairs: int
    right: int

    @property
    def share(self) -> float:
        """The share in the right order; nan without a pair."""
        return self.right / self.pairs if self.pairs else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class FitVerdicts:
    """Runs that ran and layouts that failed.

    ran, ran_fits          runs with a verdict, and those predicted to fit
    failed, failed_fits    failures with a verdict, and those predicted to fit
    """

    ran: int
    ran_fits: int
    failed: int
    failed_fits: int

    @property
    def balanced_accuracy(self) -> float:
        """Mean of the two rates of right verdicts; nan if either side is empty."""
        if not self.ran or not self.failed:
            return math.nan
        return (self.ran_fits / self.ran + 1.0 - self.failed_fits / self.failed) / 2.0


def regret(rows: Iterable[ComparedRun]) -> Regret:
    """The regret over workloads (model, devices, sequence, batch) of LEAST_LAYOUTS or more.

    Only rows with a measured and a predicted step time and all four figures count. Ties are broken
    by the order of the rows.
    """
    groups: dict[tuple[str, int, int, int], list[tuple[float, float]]] = {}
    for row in rows:
        run, pair = row.run, _times(row)
        if pair is None or run.num_devices is None or run.seq_len is None:
            continue
        if not run.model or run.global_batch is None:
            continue
        key = (run.model, run.num_devices, run.seq_len, run.global_batch)
        groups.setdefault(key, []).append(pair)
    costs = [
        min(pairs, key=lambda pair: pair[0])[1] / min(measured for _, measured in pairs) - 1.0
        for pairs in groups.values()
        if len(pairs) >= LEAST_LAYOUTS
    ]
    if not costs:
        return Regret(groups=0, mean=math.nan, worst=math.nan)
    return Regret(groups=len(costs), mean=sum(costs) / len(costs), worst=max(costs))


def pair_order(rows: Iterable[ComparedRun]) -> PairOrder:
    """How many pairs of one (model, devices, batch) are in the right order.

    Pairs with measured times within CLOSE of each other do not count: published figures are not
    more precise. Equal predictions are wrong.
    """
    groups: dict[tuple[str, int, int], list[tuple[float, float]]] = {}
    for row in rows:
        run, pair = row.run, _times(row)
        if pair is None or not run.model or run.num_devices is None or run.global_batch is None:
            continue
        groups.setdefault((run.model, run.num_devices, run.global_batch), []).append(pair)
    pairs = right = 0
    for times in groups.values():
        for later, (predicted, measured) in enumerate(times):
            for other_predicted, other_measured in times[:later]:
                if abs(measured / other_measured - 1.0) > CLOSE:
                    pairs += 1
                    product = (predicted - other_predicted) * (measured - other_measured)
                    right += product > 0.0
    return PairOrder(pairs=pairs, right=right)


def fit_verdicts(ran: Sequence[ComparedRun], failed: Sequence[PredictedRun]) -> FitVerdicts:
    """The verdicts on both; rows without a verdict do not count."""
    kept = [row.predicted.fits for row in ran if row.predicted.fits is not None]
    lost = [row.fits for row in failed if row.fits is not None]
    return FitVerdicts(ran=len(kept), ran_fits=sum(kept), failed=len(lost), failed_fits=sum(lost))


def _times(row: ComparedRun) -> tuple[float, float] | None:
    predicted, measured = row.predicted.step_time_s, row.measured.step_time_s
    return None if predicted is None or not measured else (predicted, measured)
