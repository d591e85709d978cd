"""Intervals of whole sources that were left out: from the others' rows alone, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t as student

from profiles.published.measured import read_measured
from profiles.published.run import FIGURES
from profiles.published.run_table import read_runs
from shardwright.validate.cross_fit import Array, FitTable, LeftOut, fit_table
from shardwright.validate.groups import source_of
from shardwright.validate.source_interval import fold_intervals, source_intervals, step_bands
from simulator.training_run.fit.interval import step_interval
from tools.derive_calibration import coverage_by_source

SOURCES = ("llmf", "simumax-b200")


@pytest.fixture(scope="module")
def table() -> FitTable:
    """Some rows of two sources, of which neither has the other's software or device."""
    rows = [run for run in read_runs(FIGURES) if source_of(run.id) in SOURCES]
    return fit_table(rows, read_measured(FIGURES))


def left_out_at(table: FitTable, time_s: Array, spread: float) -> LeftOut:
    return LeftOut(time_s=time_s, spread=np.full(len(table.runs), spread))


def end(misses: list[float]) -> float:
    """Where nine of ten end of misses on one side of a prediction: by scipy's own likeliest
    t-distribution of four degrees of freedom, of them and their mirror images."""
    both = [*misses, *(-x for x in misses)]
    _, _, scale = student.fit(both, fdf=4, floc=0)
    return float(scale * student.ppf(0.95, 4))


def test_a_source_is_judged_by_the_others_alone(table: FitTable) -> None:
    """llmf is predicted 10 % too fast with itself left out, SimuMax's rows 2 and 4 % too slow: each
    gets what holds the other's, however known its coefficients are."""
    of_llmf = np.asarray([source_of(run.id) == "llmf" for run in table.runs])
    slower = np.where(np.arange(len(of_llmf)) % 2 == 0, 1.02, 1.04)
    left = left_out_at(table, table.measured_s * np.where(of_llmf, 1 / 1.1, slower), 0.1)
    intervals = source_intervals(table, left, left)
    below = end(np.log(slower[~of_llmf]).tolist())
    for i, interval in enumerate(intervals):
        ends = np.log([interval.low / left.time_s[i], interval.high / left.time_s[i]])
        expected = (-below, 0.0) if of_llmf[i] else (0.0, math.log(1.1) * student.ppf(0.95, 4))
        assert ends == pytest.approx(expected, rel=1e-3)
    held = coverage_by_source(table, intervals)
    assert held == {"llmf": 0.0, "simumax-b200": 0.0}


def test_intervals_are_as_wide_as_coefficients_are_uncertain(table: FitTable) -> None:
    """Misses as large as the spread of coefficients, here twice as uncertain as there, below the
    prediction half as large: no ceiling is needed. Where misses are alike everywhere there is."""
    odd = np.arange(len(table.runs)) % 2
    spread = np.where(odd, 0.2, 0.1)
    signs = np.where(np.arange(len(odd)) // 2 % 2 == 0, 1.0, -0.5)
    left = LeftOut(time_s=table.measured_s * np.exp(-signs * spread), spread=spread)
    found = step_bands(table, left, left)
    assert found is not None
    assert found.ceiling > 0.9
    ninety = student.ppf(0.95, 4)
    assert (found.low, found.high) == pytest.approx((-0.5 * ninety, ninety), rel=0.05)
    assert (found.rows, found.sources) == (len(table.runs), len(SOURCES))
    even = LeftOut(time_s=table.measured_s * np.exp(-0.3 * np.sign(signs)), spread=spread)
    alike = step_bands(table, even, even)
    assert alike is not None
    ends = [math.log(step_interval(table.runs[0], 1.0, each, alike).high) for each in (0.1, 0.2)]
    assert ends == pytest.approx([0.3 * ninety] * 2, rel=0.01)


def test_rows_weigh_as_in_a_fit(table: FitTable) -> None:
    """A row that no fit looks at says nothing of intervals either, a hundred times off as it is
    here; and that all count double is no matter."""
    rng = np.random.default_rng(3)
    left = left_out_at(table, table.measured_s * np.exp(rng.normal(0.0, 0.1, len(table.runs))), 0.1)
    plain = step_bands(table, left, left)
    assert plain is not None
    first = np.arange(len(table.runs)) == 0
    spoilt = replace(left, time_s=np.where(first, 100.0, 1.0) * left.time_s)
    without = step_bands(
        replace(table, weights=np.where(first, 0.0, table.weights)), spoilt, spoilt
    )
    assert without is not None
    assert without.rows == plain.rows - 1
    assert (without.low, without.high) == pytest.approx((plain.low, plain.high), rel=0.2)
    double = step_bands(replace(table, weights=2.0 * table.weights), left, left)
    assert double is not None
    assert (double.low, double.high) == pytest.approx((plain.low, plain.high), rel=1e-4)


def test_of_one_source_nothing_is_said(table: FitTable) -> None:
    left = left_out_at(table, table.measured_s, 0.1)
    assert step_bands(table, left, left, without="") is not None
    mine = [i for i, run in enumerate(table.runs) if source_of(run.id) == "llmf"]
    rows = np.asarray(mine)
    alone = replace(
        table,
        published=tuple(table.published[i] for i in mine),
        runs=tuple(table.runs[i] for i in mine),
        features=table.features.rows(rows),
        assigned=table.assigned.rows(rows),
        measured_s=table.measured_s[rows],
        weights=table.weights[rows],
    )
    few = left_out_at(alone, alone.measured_s, 0.1)
    assert step_bands(alone, few, few, without="llmf") is None


def test_jobs_that_may_stall_have_bands_of_their_own(table: FitTable) -> None:
    """Twenty copies of a run on two nodes whose host waits, five times as slow as predicted: the
    others' bands know nothing of them."""
    first = table.runs[0]
    stalled = replace(
        first, id="ultra-1", stack="nanotron", num_devices=16, node_devices=8, pp=2, dp=8, tp=1
    )
    many = np.concatenate([np.arange(len(table.runs)), np.zeros(20, dtype=np.intp)])
    both = replace(
        table,
        published=tuple(table.published[i] for i in many),
        runs=(*table.runs, *[stalled] * 20),
        features=table.features.rows(many),
        assigned=table.assigned.rows(many),
        measured_s=table.measured_s[many],
        weights=table.weights[many],
    )
    slow = np.where(np.arange(len(many)) < len(table.runs), 1.0, 5.0)
    left = left_out_at(both, both.measured_s / slow, 0.1)
    found = step_bands(both, left, left)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((0.0, 0.0), abs=1e-3)
    names = ("nanotron, few nodes, stages between nodes", "nanotron, stages between nodes")
    assert {name: found.stalled[name].high for name in names} == pytest.approx(
        dict.fromkeys(names, 5.0)
    )
    assert fold_intervals(both, left, found)[-1].high == pytest.approx(both.measured_s[-1])
