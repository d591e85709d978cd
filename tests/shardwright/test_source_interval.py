"""Intervals of whole sources that were left out: from the others' rows alone, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from profiles.published.measured import read_measured
from profiles.published.run import FIGURES
from profiles.published.run_table import read_runs
from shardwright.validate.cross_fit import FitTable, fit_table
from shardwright.validate.groups import source_of
from shardwright.validate.source_interval import (
    source_intervals,
    step_bands,
)
from simulator.training_run.fit.interval import FEWEST
from tools.derive_calibration import coverage_by_source

SOURCES = ("llmf", "simumax-b200")


@pytest.fixture(scope="module")
def table() -> FitTable:
    """Some rows of two sources, of which neither has the other's software or device."""
    rows = [run for run in read_runs(FIGURES) if source_of(run.id) in SOURCES]
    return fit_table(rows, read_measured(FIGURES))


def test_a_source_is_judged_by_the_others_alone(table: FitTable) -> None:
    """llmf is predicted 10 % too fast with itself left out, SimuMax's rows 2 and 4 % too slow."""
    of_llmf = np.asarray([source_of(run.id) == "llmf" for run in table.runs])
    slower = np.where(np.arange(len(of_llmf)) % 2 == 0, 1.02, 1.04)
    source_s = table.measured_s * np.where(of_llmf, 1 / 1.1, slower)
    intervals = source_intervals(table, table.measured_s, source_s)
    for i, interval in enumerate(intervals):
        ends = interval.low / source_s[i], interval.high / source_s[i]
        expected = (1 / 1.04, 1.0) if of_llmf[i] else (1.0, 1.1)
        assert ends == pytest.approx(expected)
    held = coverage_by_source(table, intervals)
    assert held == {"llmf": 0.0, "simumax-b200": 0.0}


def test_what_other_sources_know_well_keeps_its_band(table: FitTable) -> None:
    """Rows of one software and device in three sources: each takes the band of the others'
    folds, drawn towards that of sources left out;
    where one source alone made it, it reaches as far as the band of sources left out."""
    mine = [i for i, run in enumerate(table.runs) if run.stack == "torch-fsdp"]
    fewest = [table.runs[i] for i in mine if table.runs[i].device == "h100-sxm-80gb"]
    assert fewest
    runs = tuple(
        replace(fewest[0], id=f"{name}-{i}")
        for name in ("one", "two", "three")
        for i in range(FEWEST)
    )
    many = np.resize([0], len(runs))
    copies = FitTable(
        published=tuple(table.published[0] for _ in runs),
        runs=runs,
        features=table.features.rows(many),
        assigned=table.assigned,
        measured_s=np.ones(len(runs)),
        weights=np.ones(len(runs)),
    )
    fold_s = np.full(len(runs), 1 / 1.05)
    source_s = np.full(len(runs), 1 / 1.5)
    for interval in source_intervals(copies, fold_s, source_s):
        joined = 1.05**0.2 * 1.5**0.8
        assert (interval.low, interval.high) == pytest.approx((1 / 1.5, joined / 1.5))
    two = step_bands(copies, fold_s, source_s)
    pair = f"{runs[0].stack}, {runs[0].device}"
    assert two[pair].high == pytest.approx(1.05)
    alone = step_bands(table, table.measured_s / 1.05, table.measured_s / 1.5)
    assert alone[pair].high == pytest.approx(1.5)
    assert step_bands(copies, fold_s, source_s)["unseen"].high == pytest.approx(1.5)
