"""Fit two values of the memory model on some published runs, and predict the others.

Two numbers are fitted, for frameworks whose files say so (peaks as nvidia-smi shows them): the
blocks that the allocator caches and the memory outside torch (`cached_over_working_set`,
`device_extra_gib`). All else is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evidence.crossvalidate import members
from evidence.groups import source_of
from evidence.memory_bands import source_spread
from profiles.errors import ShardwrightError
from profiles.hardware.catalogue.catalog import get_device
from shardwright.runs.complete import complete_run
from shardwright.runs.run import PublishedRun
from shardwright.runs.run_table import Measured
from simulator.memory.footprint import GIB, Footprint, footprint
from simulator.training_run.fit.memory_interval import (
    margin_names,
    memory_interval,
)
from simulator.training_run.framework.framework import FrameworkMemory, memory_of
from simulator.training_run.run.training_run import TrainingRun
from simulator.values.prediction import Interval

# What an allocator caches, over the working set, and the device's memory outside torch, where no
# peak of the framework is known (megatron-core.toml).
USUAL_CACHED = 0.8
USUAL_EXTRA_GIB = 3.5

Array = NDArray[np.float64]

# Rounds of reweighted least squares for the least absolute relative error, and the error below
# which a row counts no more than at it.
_ROUNDS = 50
_FLOOR = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """A peak as nvidia-smi shows it: allocated + factor x working set + extra, in bytes."""

    stack: str
    allocated: float
    working_set: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRow:
    """A peak in which nothing is fitted, in bytes."""

    shown: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTable:
    """Runs whose peak was measured and can be predicted; lists are in one order.

    measured   [runs] bytes
    """

    published: tuple[PublishedRun, ...]
    runs: tuple[TrainingRun, ...]
    rows: tuple[DeviceRow | CountedRow, ...]
    measured: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFit:
    """device: factor and bytes besides, by stack."""

    device: Mapping[str, tuple[float, float]]


def memory_table(published: Iterable[PublishedRun], measured: Iterable[Measured]) -> MemoryTable:
    """The table of the runs that can be predicted and whose peak is known."""
    peaks = {row.id: row.peak_memory_gib for row in measured}
    kept: list[PublishedRun] = []
    runs: list[TrainingRun] = []
    rows: list[DeviceRow | CountedRow] = []
    for asked in published:
        if not peaks.get(asked.id):
            continue
        try:
            run = complete_run(asked)
            rows.append(_row(run))
        except ShardwrightError:
            continue
        kept.append(asked)
        runs.append(run)
    return MemoryTable(
        published=tuple(kept),
        runs=tuple(runs),
        rows=tuple(rows),
        measured=np.asarray([GIB * (peaks[run.id] or 0.0) for run in kept]),
    )


def _row(run: TrainingRun) -> DeviceRow | CountedRow:
    stack = memory_of(run)
    found = footprint(run)
    if stack.shows == "device" and stack.device_extra_gib.method == "fitted":
        return _device_row(stack, found, run)
    return CountedRow(shown=found.shown_bytes)


def _device_row(stack: FrameworkMemory, found: Footprint, run: TrainingRun) -> DeviceRow:
    fullest = max(found.ranks, key=lambda rank: rank.reserved_bytes or 0.0)
    details = found.details[fullest.rank]
    context = get_device(run.device).reserved_bytes.value
    return DeviceRow(
        stack=stack.name,
        allocated=fullest.peak_bytes + details.lingering_bytes + context,
        working_set=details.working_set_bytes,
    )


def fit_memory(table: MemoryTable, *, without: Sequence[int] = ()) -> MemoryFit:
    """What fits all rows but some best."""
    used = [i for i in range(len(table.rows)) if i not in set(without)]
    device: dict[str, list[int]] = {}
    for i in used:
        row = table.rows[i]
        if isinstance(row, DeviceRow):
            device.setdefault(row.stack, []).append(i)
    return MemoryFit(
        device={name: _device_fit(table, rows) for name, rows in sorted(device.items())},
    )


def _device_fit(table: MemoryTable, places: Sequence[int]) -> tuple[float, float]:
    """(factor, bytes besides) with the least absolute relative error."""
    rows = [row for i in places if isinstance(row := table.rows[i], DeviceRow)]
    peaks = table.measured[list(places)]
    left = np.asarray([[row.working_set, GIB] for row in rows]) / peaks[:, None]
    right = 1.0 - np.asarray([row.allocated for row in rows]) / peaks
    weights: Array = np.ones(len(rows))
    found: Array = np.zeros(2)
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        solved = np.linalg.lstsq(left * root[:, None], right * root, rcond=None)[0]
        found = np.asarray(solved, dtype=np.float64)
        weights = np.asarray(1.0 / np.maximum(_FLOOR, np.abs(left @ found - right)))
    return float(found[0]), float(found[1]) * GIB


def predicted_bytes(table: MemoryTable, fitted: MemoryFit) -> Array:
    """[runs] peaks."""
    return np.asarray([_predicted(row, fitted) for row in table.rows])


def _predicted(row: DeviceRow | CountedRow, fitted: MemoryFit) -> float:
    if isinstance(row, DeviceRow):
        if row.stack not in fitted.device:
            # No peak of the framework is left to fit on: what others leave.
            return row.allocated + USUAL_CACHED * row.working_set + USUAL_EXTRA_GIB * GIB
        factor, extra = fitted.device[row.stack]
        return row.allocated + factor * row.working_set + extra
    return row.shown


def left_out_bytes(table: MemoryTable, folds: Mapping[str, str]) -> Array:
    """[runs] peaks, each with what was fitted without its fold."""
    found = np.full(len(table.rows), np.nan)
    for rows in members(folds, [run.id for run in table.published]).values():
        found[rows] = predicted_bytes(table, fit_memory(table, without=rows))[rows]
    return found


def ratios_by_source(
    table: MemoryTable, peaks: Array, *, without: Sequence[int] = ()
) -> dict[str, list[float]]:
    """Measured over predicted, by source."""
    left = set(without)
    found: dict[str, list[float]] = {}
    for i, run in enumerate(table.published):
        if i not in left:
            found.setdefault(source_of(run.id), []).append(float(table.measured[i] / peaks[i]))
    return found


def ratios_by_framework(table: MemoryTable, peaks: Array) -> dict[str, list[float]]:
    """Measured over predicted, by `FrameworkMemory.name`, by family and of all. What the device
    shows says nothing of what fits: it has blocks that the allocator could have given back."""
    found: dict[str, list[float]] = {}
    for i, run in enumerate(table.runs):
        if run.memory_kind != "device":
            for name in margin_names(run):
                found.setdefault(name, []).append(float(table.measured[i] / peaks[i]))
    return found


def left_out_intervals(
    table: MemoryTable, peaks: Array, folds: Mapping[str, str]
) -> tuple[Interval, ...]:
    """[runs] 90 % intervals of peaks that were left out, each from the rows of the other folds
    alone; of the shipped spread where those are of one source."""
    found: dict[int, Interval] = {}
    for rows in members(folds, [run.id for run in table.published]).values():
        spread = source_spread(ratios_by_source(table, peaks, without=rows))
        for i in rows:
            found[i] = memory_interval(table.runs[i], float(peaks[i]), spread)
    return tuple(found[i] for i in range(len(table.runs)))
