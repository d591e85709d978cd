"""Footprints against published peaks: those of the open rows that stand beside the repository."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from profiles.published.measured import read_measured
from profiles.published.run_table import read_runs
from simulator.training_run.complete import UnsupportedRunError, complete_run
from simulator.training_run.footprint import fits, footprint
from simulator.training_run.training_run import TrainingRun

TRUTH = Path(__file__).parents[3] / "shared" / "truth"
GIB = 2**30
pytestmark = pytest.mark.skipif(
    not (TRUTH / "runs.csv").is_file(), reason=f"no published runs at {TRUTH}"
)


@functools.cache
def _measured() -> tuple[tuple[TrainingRun, float], ...]:
    peaks = {m.id: m.peak_memory_gib for m in read_measured(TRUTH / "runs.csv")}
    found = []
    for run in read_runs(TRUTH / "runs.csv", lenient=True):
        peak = peaks[run.id]
        if peak is not None:
            try:
                found.append((complete_run(run), peak))
            except UnsupportedRunError:
                continue
    return tuple(found)


def _errors(prefix: str, *, unit: float = GIB) -> np.ndarray:
    rows = [(run, peak) for run, peak in _measured() if run.id.startswith(prefix)]
    assert rows
    return np.array([footprint(run).shown_bytes / unit / peak - 1 for run, peak in rows])


@pytest.mark.parametrize(
    ("prefix", "worst_mean"),
    # As measured, with a little room: 0.10 %, 3.6 %, 6.3 % (rows left out 7.2 %), 7.9 %, 7.5 %.
    [
        ("simumax-b200", 0.002),
        ("bloom", 0.04),
        ("ultra", 0.067),
        ("mlperf", 0.09),
        ("dlperf", 0.08),
    ],
)
def test_mean_error(prefix: str, worst_mean: float) -> None:
    assert np.abs(_errors(prefix)).mean() <= worst_mean


def test_zero_bubble_prints_decimal_gigabytes() -> None:
    # Its runtime logs max_memory_allocated() // 1000000; read as GiB the same rows are 5.7 % off.
    assert np.abs(_errors("zb_", unit=1e9)).mean() <= 0.025
    assert np.abs(_errors("zb_")).mean() <= 0.06


def test_without_tensor_parallelism_nothing_is_fitted_and_half_are_within_a_per_cent() -> None:
    errors = [
        footprint(run).shown_bytes / GIB / peak - 1
        for run, peak in _measured()
        if run.id.startswith("ultra") and run.tp == 1
    ]
    assert len(errors) == 85
    assert np.median(np.abs(errors)) <= 0.008
    assert np.mean(np.abs(errors)) <= 0.026


def test_no_model_of_the_sweep_is_far_from_the_others() -> None:
    by_depth: dict[int, list[float]] = {}
    for run, peak in _measured():
        if run.id.startswith("ultra"):
            error = abs(footprint(run).shown_bytes / GIB / peak - 1)
            by_depth.setdefault(run.model.num_layers, []).append(error)
    assert len(by_depth) == 4
    assert all(np.mean(errors) < 0.09 for errors in by_depth.values())


def test_fits_or_fails() -> None:
    ran = np.mean([fits(run) for run, _ in _measured() if run.id.startswith("ultra")])
    failed = [complete_run(run) for run in read_runs(TRUTH / "failed.csv")]
    assert len(failed) == 753
    stopped = np.mean([not fits(run) for run in failed])
    # 97.9 % and 94.7 %; of the rest a good part failed for other reasons than memory.
    assert (ran + stopped) / 2 >= 0.96
