"""What is fitted of memory: two numbers of nvidia-smi, refitted without each fold."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from evidence.memory_fit import (
    USUAL_CACHED,
    USUAL_EXTRA_GIB,
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
from shardwright.runs.complete import complete_run
from shardwright.runs.run import FIGURES, PublishedRun
from shardwright.runs.run_table import Measured, read_runs
from simulator.memory.footprint import footprint

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
    rows = [
        DeviceRow(stack="s", allocated=0.0, working_set=float(10 + i % 4) * GIB) for i in range(8)
    ]
    passing = np.asarray([row.working_set for row in rows])
    table = _table([*rows], [*(2.0 * passing[:4]), *passing[4:]])
    folds = {f"r{i}": ("high" if i < 4 else "low") for i in range(8)}
    found = left_out_bytes(table, folds)
    # Each half is told the other's factor: this is what leaving out must do to pure folds.
    assert found[:4] == pytest.approx(passing[:4])
    assert found[4:] == pytest.approx(2.0 * passing[4:])


def test_two_numbers_of_nvidia_smi_are_found_again() -> None:
    working_set = np.linspace(5.0, 40.0, 12) * GIB
    allocated = np.linspace(12.0, 9.0, 12) * GIB
    rows: list[DeviceRow | CountedRow] = [
        DeviceRow(stack="s", allocated=float(a), working_set=float(b))
        for a, b in zip(allocated, working_set, strict=True)
    ]
    peaks = allocated + 1.3 * working_set + 2.5 * GIB
    # One row that is far off moves a least-squares fit, not one of absolute errors.
    peaks[3] *= 1.5
    fitted = fit_memory(_table(rows, peaks.tolist()))
    factor, extra = fitted.device["s"]
    assert factor == pytest.approx(1.3, abs=0.01)
    assert extra / GIB == pytest.approx(2.5, abs=0.1)
    # Without a peak of the framework, what others cache and hold outside torch.
    alone = predicted_bytes(_table(rows, peaks.tolist()), MemoryFit(device={}))
    assert alone == pytest.approx(allocated + USUAL_CACHED * working_set + USUAL_EXTRA_GIB * GIB)


def test_counted_rows_are_what_the_footprint_shows() -> None:
    published = [run for run in read_runs(FIGURES, lenient=True) if run.id.startswith("simumax")]
    table = memory_table(
        published, [Measured(id=run.id, peak_memory_gib=40.0) for run in published]
    )
    assert len(table.rows) == len(published) > 0
    shown = [footprint(run).shown_bytes for run in table.runs]
    assert predicted_bytes(table, fit_memory(table)).tolist() == shown


def test_intervals_of_a_source_come_from_the_others() -> None:
    """Sources a and b measure e^0.1 and e^-0.1 times what is counted, c twice as much: the width of
    a is that of b and c, sqrt((0.1^2 + log(2)^2) / 2), that of c is 0.1."""
    rows: list[DeviceRow | CountedRow] = [CountedRow(shown=10.0)] * 60
    ratios = [math.exp(0.1)] * 20 + [math.exp(-0.1)] * 20 + [2.0] * 20
    table = _table(rows, [10.0 * ratio for ratio in ratios])
    names = [f"{'abc'[i // 20]}-{i}" for i in range(60)]
    table = replace(
        table, published=tuple(PublishedRun(row=i + 1, id=name) for i, name in enumerate(names))
    )
    folds = {name: name[0] for name in names}
    found = left_out_intervals(table, predicted_bytes(table, fit_memory(table)), folds)
    wide = math.sqrt((0.1**2 + math.log(2) ** 2) / 2)
    assert found[0].high == pytest.approx(10.0 * math.exp(1.644854 * wide))
    assert found[59].high == pytest.approx(10.0 * math.exp(1.644854 * 0.1))
