"""What is fitted of memory: two numbers of nvidia-smi, refitted without each fold."""

from __future__ import annotations

import numpy as np
import pytest

from profiles.published.measured import Measured
from profiles.published.run import FIGURES, PublishedRun
from profiles.published.run_table import read_runs
from shardwright.validate.memory_fit import (
    CountedRow,
    DeviceRow,
    MemoryFit,
    MemoryTable,
    fit_memory,
    left_out_bytes,
    left_out_intervals,
    memory_table,
    predicted_bytes,
)
from simulator.training_run.memory.footprint import footprint
from simulator.training_run.reading.complete import complete_run

GIB = 2**30


def _table(rows: list[DeviceRow | CountedRow], measured: list[float]) -> MemoryTable:
    """Of one completed run, repeated under other ids: the fit reads rows and peaks alone."""
    asked = next(run for run in read_runs(FIGURES, lenient=True) if run.id.startswith("simumax"))
    completed = complete_run(asked)
    return MemoryTable(
        published=tuple(PublishedRun(row=i + 1, id=f"r{i}") for i in range(len(rows))),
        runs=(completed,) * len(rows),
        rows=tuple(rows),
        measured=np.asarray(measured),
    )


def test_the_two_numbers_of_a_fold_come_from_the_others() -> None:
    rows = [DeviceRow(stack="s", lasting=0.0, passing=float(10 + i % 4) * GIB) for i in range(8)]
    passing = np.asarray([row.passing for row in rows])
    table = _table([*rows], [*(2.0 * passing[:4]), *passing[4:]])
    folds = {f"r{i}": ("high" if i < 4 else "low") for i in range(8)}
    found = left_out_bytes(table, folds)
    # Each half is told the other's factor: this is what leaving out must do to pure folds.
    assert found[:4] == pytest.approx(passing[:4])
    assert found[4:] == pytest.approx(2.0 * passing[4:])


def test_two_numbers_of_nvidia_smi_are_found_again() -> None:
    passing = np.linspace(5.0, 40.0, 12) * GIB
    lasting = np.linspace(12.0, 9.0, 12) * GIB
    rows: list[DeviceRow | CountedRow] = [
        DeviceRow(stack="s", lasting=float(a), passing=float(b))
        for a, b in zip(lasting, passing, strict=True)
    ]
    peaks = lasting + 1.3 * passing + 2.5 * GIB
    # One row that is far off moves a least-squares fit, not one of absolute errors.
    peaks[3] *= 1.5
    fitted = fit_memory(_table(rows, peaks.tolist()))
    factor, extra = fitted.device["s"]
    assert factor == pytest.approx(1.3, abs=0.01)
    assert extra / GIB == pytest.approx(2.5, abs=0.1)
    alone = predicted_bytes(_table(rows, peaks.tolist()), MemoryFit(device={}))
    assert alone == pytest.approx(lasting + passing)


def test_counted_rows_are_what_the_footprint_shows() -> None:
    published = [run for run in read_runs(FIGURES, lenient=True) if run.id.startswith("simumax")]
    table = memory_table(
        published, [Measured(id=run.id, peak_memory_gib=40.0) for run in published]
    )
    assert len(table.rows) == len(published) > 0
    shown = [footprint(run).shown_bytes for run in table.runs]
    assert predicted_bytes(table, fit_memory(table)).tolist() == shown


def test_intervals_of_a_fold_come_from_the_others() -> None:
    rows: list[DeviceRow | CountedRow] = [CountedRow(shown=10.0)] * 60
    # 40 rows within 10 %, and a fold of 20 that is twice as large.
    measured = [10.0 + 0.05 * i for i in range(-20, 20)] + [20.0] * 20
    table = _table(rows, measured)
    folds = {f"r{i}": str(i // 20) for i in range(60)}
    peaks = predicted_bytes(table, fit_memory(table))
    bands = left_out_intervals(table, peaks, folds)
    assert all(band.high < 11.0 for band in bands[40:])
    assert all(band.high == pytest.approx(20.0) for band in bands[:40])
