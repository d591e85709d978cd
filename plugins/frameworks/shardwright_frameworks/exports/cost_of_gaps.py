"""`cost_of_gaps`: the predicted cost of the options that a target does not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from profiles.errors import ShardwrightError
from profiles.hardware.catalogue.catalog import get_device
from shardwright_frameworks.exports.values.exported import Unexpressed
from shardwright_frameworks.exports.values.planned_run import PlannedRun
from simulator.memory.footprint import footprint
from simulator.training_run.run.training_run import TrainingRun, with_settings
from simulator.training_run.step.step_time import price_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedGap:
    """A gap and its price.

    slower        share by which the exported run's step is longer than planned, negative if shorter
    more_bytes    additional bytes on the fullest device
    why_no_price  why there is none, or ""
    """

    gap: Unexpressed
    slower: float | None = None
    more_bytes: float | None = None
    why_no_price: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOfGaps:
    """The cost of each gap alone, and of all together."""

    gaps: tuple[PricedGap, ...]
    slower: float | None
    more_bytes: float | None
    fits: bool | None


def cost_of_gaps(planned: PlannedRun, gaps: tuple[Unexpressed, ...]) -> CostOfGaps:
    """The gaps priced on the planned run's framework, by predicting it with the exported values.

    Gaps that move ranks between axes are priced on top of each other; others alone.
    """
    found, before = [], dict[str, object]()
    for gap in gaps:
        if not planned.priced:
            found.append(PricedGap(gap=gap, why_no_price="the cost model has no such device"))
            continue
        if gap.change is None:
            found.append(
                PricedGap(gap=gap, why_no_price="the cost model does not distinguish the two")
            )
            continue
        moves = "dp" in gap.change
        base = with_settings(planned.run, before) if moves else planned.run
        found.append(_priced(gap, base, gap.change))
        if moves:
            before |= gap.change
    together: dict[str, object] = {}
    for gap in gaps:
        together |= gap.change or {}
    all_gaps = Unexpressed(option="all", planned="", written="", why="", change=together)
    if not planned.priced or not together:
        none = 0.0 if planned.priced and not gaps else None
        return CostOfGaps(gaps=tuple(found), slower=none, more_bytes=none, fits=None)
    total = _priced(all_gaps, planned.run, together)
    return CostOfGaps(
        gaps=tuple(found),
        slower=total.slower,
        more_bytes=total.more_bytes,
        fits=_fits(planned, total),
    )


def _priced(gap: Unexpressed, run: TrainingRun, change: Mapping[str, object]) -> PricedGap:
    try:
        other = with_settings(run, change)
        planned_s, written_s = (float(s) for s in price_runs([run, other]).parts.total_s)
    except ShardwrightError as error:
        return PricedGap(gap=gap, why_no_price=str(error))
    try:
        more = footprint(other).needed_bytes - footprint(run).needed_bytes
    except ShardwrightError as error:
        return PricedGap(gap=gap, slower=written_s / planned_s - 1.0, why_no_price=str(error))
    return PricedGap(gap=gap, slower=written_s / planned_s - 1.0, more_bytes=more)


def _fits(planned: PlannedRun, total: PricedGap) -> bool | None:
    if total.more_bytes is None:
        return None
    needed = planned.prediction.fullest.limiting_bytes + total.more_bytes
    return needed <= get_device(planned.run.device).usable_bytes
