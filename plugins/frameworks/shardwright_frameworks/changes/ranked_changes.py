"""`ranked_changes`: the single changes of a run that are predicted to speed it up, best first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiles.errors import ShardwrightError
from profiles.hardware.catalogue.catalog import get_device
from shardwright_frameworks.changes.single_change import SETTINGS, SingleChange, single_changes
from simulator.memory.footprint import footprint
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.step_time import price_runs

# Published step times of one configuration, measured again, differ by about this much (median 6 %
# of NVIDIA's releases, 5 % of all sources, 2026-11-22). A smaller gain is not worth advice.
LEAST_GAIN = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedChange:
    """A change and its price.

    gain           share of the step that is saved
    step_time_s    with the change
    needed_bytes   required per device with the change, None if the framework's memory is not
                   described
    """

    change: SingleChange
    step_time_s: float
    gain: float
    needed_bytes: float | None


def ranked_changes(
    run: TrainingRun,
    *,
    precisions: tuple[str, ...] = (),
    least_gain: float = LEAST_GAIN,
) -> tuple[PricedChange, ...]:
    """The changes that fit in memory and save at least `least_gain` of the predicted step.

    If the run is predicted not to fit, changes that need no more memory than it are allowed.
    """
    return tuple(
        priced
        for priced in priced_changes(run, single_changes(run, precisions=precisions))
        if priced.gain >= least_gain
    )


def priced_changes(run: TrainingRun, changes: Sequence[SingleChange]) -> tuple[PricedChange, ...]:
    """The changes that fit, with their prices, largest gain first; ties in the order of SETTINGS.

    Raises ShardwrightError if the run itself cannot be predicted.
    """
    base_s = float(price_runs([run]).parts.total_s[0])
    base_need = _needed(run)
    room = float(get_device(run.device).usable_bytes)
    if base_need is not None:
        room = max(room, base_need)
    found = []
    for change in changes:
        try:
            step_s = float(price_runs([change.run]).parts.total_s[0])
        except ShardwrightError:
            continue
        needed = _needed(change.run)
        if needed is not None and needed > room:
            continue
        found.append(
            PricedChange(
                change=change, step_time_s=step_s, gain=1.0 - step_s / base_s, needed_bytes=needed
            )
        )
    order = {setting: place for place, setting in enumerate(SETTINGS)}
    return tuple(sorted(found, key=lambda p: (-p.gain, order[p.change.setting], str(p.change.new))))


def _needed(run: TrainingRun) -> float | None:
    try:
        memory = footprint(run)
    except ShardwrightError:
        return None
    return float("inf") if memory.refused else memory.needed_bytes
